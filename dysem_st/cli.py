"""The command ``dysem-st``: its arguments. What the commands do is in `dysem_st.commands`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from . import commands
from ._version import __version__

DEFAULT_MODEL = "gemma-3-270m"

EPILOG = """\
examples:
  dysem-st demo
      a table of sentence pairs, scored by the small model that needs no download
  dysem-st similarity "A man plays a guitar." "Someone makes music."
      two sentences of yours; the answer says which views the model used
  dysem-st similarity --model llama3.1-8b --translations memory.csv "A cat." "A dog."
      another model; memory.csv has a column a language (en,fr,...) and a row a sentence
  dysem-st encode texts.txt -o rows.npy
      one packed row a line; compare rows with dysem_st.joint_cosine
  dysem-st calibrate texts.txt -o my-model --model qwen3-8b --translations memory.csv
      centre a model on texts of yours and save it
  dysem-st export llama3.1-8b models
      write a preset as a folder that SentenceTransformer loads
  dysem-st push models/dysem/llama3.1-8b you/llama3.1-8b
      publish that folder

exit codes: 0 done, 1 it failed, 2 the command or its input was wrong, 130 interrupted
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``dysem-st``."""
    parser = argparse.ArgumentParser(
        prog="dysem-st",
        description="Training-free semantic similarity with decoder language models (DySem).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dysem_st {__version__}")
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    similarity = sub.add_parser("similarity", help="score two texts", description=commands.similarity.__doc__)
    similarity.add_argument("text", nargs=2, metavar="TEXT")
    _model_options(similarity)
    _json_option(similarity)
    similarity.set_defaults(run=commands.similarity)

    encode = sub.add_parser("encode", help="encode a file of texts", description=commands.encode.__doc__)
    encode.add_argument("file", metavar="FILE", help=".txt, a text a line; or .jsonl, a string or {code: text} a line")
    encode.add_argument(
        "-o", "--output", required=True, metavar="FILE", help=".npy (packed rows) or .npz (vector, mask)"
    )
    _model_options(encode)
    _json_option(encode)
    encode.set_defaults(run=commands.encode)

    calibrate = sub.add_parser("calibrate", help="centre a model on texts", description=commands.calibrate.__doc__)
    calibrate.add_argument("file", metavar="FILE", help="unlabelled texts: .txt or .jsonl, as for encode")
    calibrate.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to save the model to")
    calibrate.add_argument("--force", action="store_true", help="write over a folder that is there")
    _model_options(calibrate)
    _json_option(calibrate)
    calibrate.set_defaults(run=commands.calibrate)

    export = sub.add_parser("export", help="write a preset as a model folder", description=commands.export.__doc__)
    export.add_argument("preset", metavar="PRESET", help="see dysem-st presets")
    export.add_argument("folder", metavar="DIR", help="the model goes to DIR/dysem/<model>")
    _json_option(export)
    export.set_defaults(run=commands.export)

    push = sub.add_parser("push", help="publish a model folder on the Hub", description=commands.push.__doc__)
    push.add_argument("folder", metavar="DIR", help="what export, calibrate or model.save wrote")
    push.add_argument("repository", metavar="OWNER/NAME")
    push.add_argument("--private", action="store_true", help="make the repository private")
    _json_option(push)
    push.set_defaults(run=commands.push)

    presets = sub.add_parser("presets", help="list the presets", description=commands.presets.__doc__)
    _json_option(presets)
    presets.set_defaults(run=commands.presets)

    demo = sub.add_parser("demo", help="score sentence pairs in several languages", description=commands.demo.__doc__)
    demo.add_argument("--device", help="where to run, such as cpu or cuda")
    _json_option(demo)
    demo.set_defaults(run=commands.demo)
    return parser


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default=DEFAULT_MODEL, help="a preset, a folder or a Hub repository (%(default)s)")
    group.add_argument("--base", help="another copy of the model's LLM: a folder or a Hub repository")
    group.add_argument("--language", metavar="CODE", help="the texts' language, for what translates them")
    group.add_argument(
        "--translations",
        metavar="FILE",
        nargs="+",
        help="ready translations: .csv, .tsv or .jsonl, a column a language",
    )
    group.add_argument("--missing", choices=("error", "drop"), help="what a text without a version in a language does")
    group.add_argument("--device", help="where to run, such as cpu or cuda")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="the dtype to load the LLM in")
    group.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="texts a batch (%(default)s)")


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode still gets the numbers
    args = make_parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); point stdout elsewhere so that exit does not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, FileNotFoundError) as error:
        return _fail(str(error), 2)
    except Exception as error:  # a person reads this; DYSEM_TRACEBACK=1 is for reporting a bug
        if os.environ.get("DYSEM_TRACEBACK"):
            raise
        return _fail(f"{type(error).__name__}: {error}", 1)
    return 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"dysem-st: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
