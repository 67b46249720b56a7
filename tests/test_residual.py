"""What is read from the residual stream, held to h^L = h^0 + A + F and to a step-by-step re-implementation."""

from __future__ import annotations

import gc
from functools import cache

import oracle
import pytest
import torch
from conftest import COMMON, CONFIGS, GQA, make_body, make_tokenizer, random_body
from transformers import AutoConfig, AutoModelForCausalLM

import dysem_st
from dysem_st import BlockLayout
from dysem_st.layouts import find_layout, layer_range
from dysem_st.residual import Decomposition, decompose, read

LENGTHS = (5, 21, 13)
PAD = 2
COMPONENTS = ("attention", "ffn", "hidden")
READOUTS = ("residual", "module")
ONE_TENSOR = ("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi3", "mistral")
TWO_TENSORS = ("gemma2", "gemma3_text", "olmo2", "olmo3", "granite")
GPTJ = {"n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4, "n_positions": 256}
GPT_NEO = {
    "hidden_size": 32, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
    "window_size": 8,
}  # fmt: skip
OPT = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "word_embed_proj_dim": 32}
BERT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@cache
def body_of(name):
    """A body that tests share and therefore never change."""
    return make_body(name)


def make_rows():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, COMMON["vocab_size"], (length,), generator=generator) for length in LENGTHS]


ROWS = make_rows()


def padded(rows=ROWS):
    """Right-padded ids, their mask, and each row's last position."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    last = torch.tensor([len(row) - 1 for row in rows])
    mask = (torch.arange(ids.shape[1])[None] <= last[:, None]).long()
    return ids, mask, last


def read_rows(body, *, layout=None, **kwargs):
    ids, mask, last = padded()
    with torch.no_grad():
        return read(
            body,
            lambda: body(input_ids=ids, attention_mask=mask, use_cache=False),
            last,
            layout=layout or find_layout(body),
            **kwargs,
        )


@cache
def traces(name):
    return [oracle.trace(body_of(name), name, row) for row in ROWS]


def expected(name, component, readout, first, last):
    """The oracle's answer, each row alone and unpadded; layers ``first`` to ``last``, counted from 1."""
    rows = []
    for _, blocks in traces(name):
        if component == "hidden":
            rows.append(blocks[last - 1].state[-1])
        else:
            field = f"{component}_{'added' if readout == 'residual' else 'output'}"
            rows.append(sum(getattr(block, field)[-1] for block in blocks[first - 1 : last]))
    return torch.stack(rows)


def all_hooks(body):
    kinds = [kind for kind in vars(torch.nn.Module()) if kind.endswith("_hooks") or "_hooks_" in kind]
    assert {"_forward_hooks", "_forward_pre_hooks"} <= set(kinds)
    return {
        (name, kind): list(getattr(module, kind).items()) for name, module in body.named_modules() for kind in kinds
    }


def count(hooks):
    return sum(map(len, hooks.values()))


def build(base, **kwargs):
    return dysem_st.build(
        base, tokenizer=make_tokenizer(), languages=["en", "fr"], prompt="source-text", k=8, device="cpu", **kwargs
    )


# The identity and the oracle.


@pytest.mark.parametrize("name", CONFIGS)
def test_the_last_state_is_the_embedding_plus_attention_plus_ffn_in_padded_rows(name):
    body = body_of(name)
    ids, mask, last = padded()
    with torch.no_grad():
        parts = decompose(body, lambda: body(input_ids=ids, attention_mask=mask), last, layout=find_layout(body))
    for part in parts:
        assert part.shape == (len(ROWS), 32) and part.dtype == torch.float32
        assert part.abs().max() > 0
    scale = parts.hidden.abs().max()
    gap = (parts.hidden - (parts.embedding + parts.attention + parts.ffn)).abs().max()
    assert gap <= 2e-6 * scale
    assert parts.error() == pytest.approx(float(gap / scale), abs=1e-6)
    start = torch.stack([trace[0][-1] for trace in traces(name)])
    torch.testing.assert_close(parts.embedding, start, rtol=1e-5, atol=1e-6)
    for component in COMPONENTS:
        torch.testing.assert_close(
            getattr(parts, component), expected(name, component, "residual", 1, 4), rtol=1e-4, atol=2e-5 * float(scale)
        )


def test_the_error_of_a_decomposition_is_the_gap_over_the_largest_state():
    ones = torch.ones(1, 3)
    parts = Decomposition(ones, ones, ones, torch.tensor([[3.0, -4.0, 3.0]]))
    assert parts.error() == pytest.approx(7 / 4)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_readout_of_every_choice_of_layers_equals_the_oracle(name, component):
    choices = {"all": (1, 4), 2: (2, 2), (1, 3): (1, 3), (-2, -1): (3, 4)}
    if component == "hidden":
        del choices[(-2, -1)]
    for readout in READOUTS:
        for layers, span in choices.items():
            got = read_rows(body_of(name), component=component, layers=layers, readout=readout)
            want = expected(name, component, readout, *span)
            assert got.shape == want.shape and got.dtype == torch.float32
            assert (got - want).abs().max() <= 2e-5 * want.abs().max(), (readout, layers)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_in_a_padded_batch_reads_what_it_reads_alone(name):
    body = body_of(name)
    together = read_rows(body)
    for index, row in enumerate(ROWS):
        with torch.no_grad():
            alone = read(
                body,
                lambda row=row: body(input_ids=row[None], use_cache=False),
                torch.tensor([len(row) - 1]),
                layout=find_layout(body),
            )
        torch.testing.assert_close(together[index], alone[0], rtol=1e-4, atol=1e-5 * float(alone.abs().max()))


def test_any_token_can_be_read():
    name, position = "gemma2", 3
    body = body_of(name)
    ids, mask, last = padded()
    with torch.no_grad():
        got = read(
            body,
            lambda: body(input_ids=ids, attention_mask=mask),
            torch.full_like(last, position),
            layout=find_layout(body),
        )
    want = torch.stack([sum(block.attention_added[position] for block in blocks) for _, blocks in traces(name)])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


# The two readouts.


@pytest.mark.parametrize("component", ("attention", "ffn"))
@pytest.mark.parametrize("name", ONE_TENSOR)
def test_module_and_residual_readouts_are_the_same_tensor_where_nothing_follows_the_module(name, component):
    body = body_of(name)
    assert torch.equal(
        read_rows(body, component=component, readout="module"),
        read_rows(body, component=component, readout="residual"),
    )


@pytest.mark.parametrize("component", ("attention", "ffn"))
@pytest.mark.parametrize("name", TWO_TENSORS)
def test_module_and_residual_readouts_differ_where_a_norm_or_factor_follows_the_module(name, component):
    body = body_of(name)
    module = read_rows(body, component=component, readout="module")
    residual = read_rows(body, component=component, readout="residual")
    assert (module - residual).abs().max() > 0.1 * residual.abs().max()


@pytest.mark.parametrize("name", TWO_TENSORS)
def test_readout_does_not_change_the_hidden_state(name):
    body = body_of(name)
    assert torch.equal(
        read_rows(body, component="hidden", readout="module"), read_rows(body, component="hidden", readout="residual")
    )


def perturb_last_norm(body):
    with torch.no_grad():
        body.layers[-1].post_attention_layernorm.weight.mul_(torch.linspace(-2.0, 2.0, 32))


def test_the_norm_before_the_ffn_of_a_llama_is_never_read():
    body = make_body("llama")
    before = {component: read_rows(body, component=component) for component in COMPONENTS}
    perturb_last_norm(body)
    assert torch.equal(read_rows(body, component="attention"), before["attention"])
    # The control: the same change reaches what comes after that norm.
    for component in ("ffn", "hidden"):
        assert not torch.allclose(read_rows(body, component=component), before[component], rtol=1e-2)


def test_the_norm_after_the_attention_of_a_gemma_is_read():
    body = make_body("gemma2")
    residual, module = (read_rows(body, layers=-1, readout=readout) for readout in READOUTS)
    perturb_last_norm(body)
    assert not torch.allclose(read_rows(body, layers=-1, readout="residual"), residual, rtol=1e-2)
    assert torch.equal(read_rows(body, layers=-1, readout="module"), module)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_hidden_state_is_the_one_before_the_final_norm(name):
    body = body_of(name)
    ids, mask, last = padded()
    hidden = read_rows(body, component="hidden")
    with torch.no_grad():
        output = body(input_ids=ids, attention_mask=mask).last_hidden_state[torch.arange(len(ids)), last]
        torch.testing.assert_close(oracle.final_norm(body)(hidden), output, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(hidden, output, rtol=1e-2)


# Hooks.


def run_once(body):
    ids, mask, _ = padded()
    return body(input_ids=ids, attention_mask=mask, use_cache=False)


@pytest.mark.parametrize("name", ("llama", "gemma2", "granite", "gpt2", "falcon"))
@pytest.mark.parametrize("component", COMPONENTS)
def test_hooks_are_gone_after_a_call_and_foreign_hooks_stay(name, component):
    body = make_body(name)
    blocks = body.layers if hasattr(body, "layers") else body.h
    seen = []
    blocks[1].register_forward_hook(lambda *_: seen.append(count(all_hooks(body))))
    before = all_hooks(body)
    read_rows(body, component=component)
    assert all_hooks(body) == before
    # The control: during the call there were more.
    assert seen[0] > count(before)
    decompose(body, lambda: run_once(body), padded()[2], layout=find_layout(body))
    assert all_hooks(body) == before


def both_readers(body, run, last, layout=None):
    layout = layout or find_layout(body)
    return (
        *(
            lambda component=component: read(body, run, last, layout=layout, component=component)
            for component in COMPONENTS
        ),
        lambda: decompose(body, run, last, layout=layout),
    )


def test_hooks_are_gone_after_an_exception_in_the_middle_of_the_body(monkeypatch):
    body = make_body("llama")

    def fail(*args, **kwargs):
        raise ArithmeticError("in the third block")

    monkeypatch.setattr(body.layers[2].mlp, "forward", fail)
    before = all_hooks(body)
    for call in both_readers(body, lambda: run_once(body), padded()[2]):
        with pytest.raises(ArithmeticError, match="in the third block"):
            call()
        assert all_hooks(body) == before


def test_hooks_are_gone_after_an_interrupt():
    body = make_body("llama")

    def interrupted():
        raise KeyboardInterrupt

    before = all_hooks(body)
    for call in both_readers(body, interrupted, padded()[2]):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert all_hooks(body) == before


def test_hooks_are_gone_after_a_hook_itself_fails():
    body = make_body("llama")
    before = all_hooks(body)
    outside = torch.tensor([0, 0, 1000])
    for call in both_readers(body, lambda: run_once(body), outside):
        with pytest.raises(IndexError):
            call()
        assert all_hooks(body) == before


def test_hooks_are_gone_where_a_later_block_lacks_a_module():
    body = make_body("llama")
    del body.layers[2].self_attn
    before = all_hooks(body)
    with pytest.raises((AttributeError, ValueError), match="self_attn"):
        read(body, lambda: run_once(body), padded()[2], layout=BlockLayout())
    assert all_hooks(body) == before


@pytest.mark.parametrize("name", ("llama", "gemma2"))
def test_a_model_that_encodes_keeps_no_hooks(name):
    model = build(make_body(name))
    body = model[0].body
    before = all_hooks(body)
    model.encode(["One text.", "Another, longer text."])
    assert all_hooks(body) == before
    with torch.no_grad():
        body.layers[1].self_attn.o_proj.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError):
        model.encode(["One text."])
    assert all_hooks(body) == before


def test_a_body_that_is_not_called_once_is_an_error():
    body = body_of("llama")
    last = padded()[2]
    for times in (0, 2):
        for call in both_readers(body, lambda times=times: [run_once(body) for _ in range(times)], last):
            with pytest.raises(RuntimeError, match="expected module outputs"):
                call()


# Layouts.


@pytest.mark.parametrize(
    ("model_type", "settings", "blocks", "children"),
    [
        ("bert", BERT, "encoder.layer", ("attention", "intermediate", "output")),
        ("opt", OPT, "decoder.layers", ("self_attn", "fc1", "fc2")),
        ("gpt_neo", GPT_NEO, "h", ("attn", "mlp")),
    ],
)
def test_an_unknown_architecture_is_refused_with_what_was_found_and_what_to_pass(
    model_type, settings, blocks, children
):
    body = random_body(model_type, settings)
    for call in (find_layout, build):
        with pytest.raises(ValueError) as error:
            call(body)
        message = str(error.value)
        assert repr(model_type) in message and repr(blocks) in message and "layout=" in message
        assert type(body).__name__ in message
        for child in children:
            assert repr(child) in message


@pytest.mark.parametrize(("model_type", "settings"), [("gptj", GPTJ), ("gpt_neo", GPT_NEO)])
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_right_layout_makes_another_architecture_work(model_type, settings, component):
    body = random_body(model_type, settings)
    layout = {"layers": "h", "attention": "attn", "ffn": "mlp"}
    model = build(body, layout=layout, component=component)
    features = model[0].preprocess(["A man plays.", "A longer text about apples, guitars and words."])
    with torch.no_grad():
        vectors = model[0](dict(features))["view_vectors"]
    ids, mask = features["input_ids"].flatten(0, 1), features["attention_mask"].flatten(0, 1)
    for vector, row, length in zip(vectors.flatten(0, 1), ids, mask.sum(-1), strict=True):
        _, blocks = oracle.trace(body, model_type, row[:length])
        fields = {"attention": "attention_added", "ffn": "ffn_added"}
        if component == "hidden":
            want = blocks[-1].state[-1]
        else:
            want = sum(getattr(block, fields[component])[-1] for block in blocks)
        assert (vector - want).abs().max() <= 2e-5 * want.abs().max()
    assert torch.equal(
        build(body, layout=BlockLayout(**layout), component=component)[0](dict(features))["view_vectors"].detach(),
        vectors,
    )


WRONG_LAYOUTS = [
    ("gemma2", {"ffn_added": "post_feedforward_layernorm"}),
    ("gemma2", {"attention_added": "post_attention_layernorm"}),
    ("olmo2", {}),
    ("granite", {"attention": "self_attn", "ffn": "mlp", "layers": "layers"}),
    ("llama", {"attention_added": "post_attention_layernorm"}),
    ("llama", {"ffn": "self_attn"}),
]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize(("name", "layout"), WRONG_LAYOUTS)
def test_a_layout_that_breaks_the_identity_is_refused(name, layout, dtype):
    body = make_body(name).to(dtype)
    with pytest.raises(ValueError, match=r"h\^L = h\^0 \+ A \+ F"):
        build(body, layout={"layers": "layers", **layout})


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", CONFIGS)
def test_a_layout_that_keeps_the_identity_is_taken_in_both_precisions(name, dtype):
    body = make_body(name)
    layout = find_layout(body)
    body = body.to(dtype)
    assert build(body, layout=layout)[0].layout == layout


@pytest.mark.parametrize(("name", "settings", "layout"), [
    ("llama", None, {"ffn": "mlp.act_fn"}),
    ("opt", OPT, {"layers": "decoder.layers", "ffn": "fc1"}),
])  # fmt: skip
def test_a_layout_that_names_a_module_of_another_width_is_refused(name, settings, layout):
    body = make_body(name) if settings is None else random_body(name, settings)
    with pytest.raises(ValueError, match="layout"):
        build(body, layout=layout)


@pytest.mark.parametrize(
    "layout",
    [
        {"layers": "blocks"}, {"layers": "norm"}, {"attention": "blocks"}, {"ffn": "blocks"},
        {"attention_added": "blocks"}, {"ffn_added": "blocks"}, {"scale": "blocks"}, {"blocks": "layers"},
    ],
)  # fmt: skip
def test_a_layout_that_names_what_is_not_there_is_refused(layout):
    with pytest.raises(ValueError, match="layout") as error:
        build(body_of("llama"), layout=layout)
    assert next(iter(layout.values())) in str(error.value) or next(iter(layout)) in str(error.value)


def test_a_layout_survives_its_saved_form():
    layout = BlockLayout(layers="h", attention="attn", ffn_added="norm", scale="factor")
    assert BlockLayout.from_dict(layout.to_dict()) == layout
    assert layout.to_dict() == {
        "layers": "h", "attention": "attn", "ffn": "mlp", "ffn_added": "norm", "scale": "factor",
    }  # fmt: skip


# Choices of layers.


@pytest.mark.parametrize(
    ("layers", "span"),
    [
        ("all", (1, 6)), (1, (1, 1)), (6, (6, 6)), (-1, (6, 6)), (-6, (1, 1)), ((1, 6), (1, 6)), ((2, 5), (2, 5)),
        ([2, 5], (2, 5)), ((-4, -1), (3, 6)), ((2, -2), (2, 5)), ((3, 3), (3, 3)),
    ],
)  # fmt: skip
def test_layers_count_from_one_and_negative_numbers_from_the_end(layers, span):
    assert layer_range(layers, 6) == span
    assert layer_range(layers, 6, "ffn") == span


@pytest.mark.parametrize("layers", [0, 7, -7, (0, 3), (1, 7), (4, 3), (-1, 1), (-7, 2)])
@pytest.mark.parametrize("component", COMPONENTS)
def test_layers_outside_the_model_or_backwards_are_refused_with_the_number_of_layers(layers, component):
    with pytest.raises(ValueError, match="1 to 6") as error:
        layer_range(layers, 6, component)
    assert repr(layers) in str(error.value)


@pytest.mark.parametrize(
    "layers", ["last", "1", None, 2.0, True, False, (1,), (1, 2, 3), (), (1, 2.0), (True, 2), ("1", "2"), {1, 2}]
)
def test_layers_of_another_form_are_a_type_error(layers):
    with pytest.raises(TypeError) as error:
        layer_range(layers, 6)
    assert repr(layers) in str(error.value)


def test_a_hidden_state_is_taken_after_one_layer():
    states = {"all": 6, 2: 2, -1: 6, (1, 4): 4, (1, -2): 5, (1, 1): 1, (4, 4): 4, (-6, 3): 3}
    for layers, last in states.items():
        assert layer_range(layers, 6, "hidden") == (last, last)


@pytest.mark.parametrize("layers", [(2, 3), (-2, -1), [2, 4]])
def test_a_hidden_state_over_several_layers_is_refused(layers):
    with pytest.raises(ValueError, match="hidden"):
        layer_range(layers, 4, "hidden")
    with pytest.raises(ValueError, match="hidden"):
        build(body_of("llama"), component="hidden", layers=layers)


@pytest.mark.parametrize(("layers", "kind"), [(5, ValueError), ((3, 2), ValueError), ("last", TypeError)])
def test_a_model_with_impossible_layers_is_refused_when_it_is_built(layers, kind):
    with pytest.raises(kind, match="layers="):
        build(body_of("llama"), layers=layers)


def test_layers_add_up():
    body = body_of("gemma3_text")
    for component in ("attention", "ffn"):
        single = sum(read_rows(body, component=component, layers=layer) for layer in (1, 2, 3, 4))
        torch.testing.assert_close(read_rows(body, component=component), single, rtol=1e-5, atol=1e-5)


# Precision, memory, and the head.


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize(
    ("name", "attention", "ffn"),
    [
        ("llama", "self_attn", "mlp"),
        ("gemma2", "post_attention_layernorm", "post_feedforward_layernorm"),
        ("cohere", "self_attn", "mlp"),
    ],
)
def test_a_half_precision_body_is_summed_in_float32(name, attention, ffn, dtype, monkeypatch):
    body = make_body(name).to(dtype)
    ids, mask, last = padded()
    for component, module in (("attention", attention), ("ffn", ffn)):
        seen = []
        with monkeypatch.context() as patch:
            for block in body.layers:
                patch.setattr(getattr(block, module), "forward", recording(getattr(block, module).forward, seen))
            got = read_rows(body, component=component)
        rows = [output[torch.arange(len(ids)), last] for output in seen]
        assert len(rows) == 4 and all(row.dtype == dtype for row in rows)
        want = torch.zeros(len(ids), 32)
        for row in rows:
            want = want + row.float()
        assert got.dtype == torch.float32 and torch.equal(got, want)
        # The control: a sum in the body's own dtype would not have been the same.
        assert not torch.equal(sum(rows).float(), want)


def recording(forward, seen):
    def record(*args, **kwargs):
        output = forward(*args, **kwargs)
        seen.append((output if isinstance(output, torch.Tensor) else output[0]).clone())
        return output

    return record


def live_storages(nbytes):
    """Every storage of ``nbytes`` that some Python tensor, view or not, keeps alive."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return {
        tensor.untyped_storage().data_ptr()
        for tensor in tensors
        if tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.untyped_storage().nbytes() == nbytes
    }


@pytest.fixture
def only_new_objects():
    """Hide what is there already from `gc.get_objects`, which is slow over a whole test session."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", ("llama", "gemma2", "granite", "gpt2", "falcon"))
def test_no_layers_full_output_outlives_its_layer(name, only_new_objects):
    body = make_body(name)
    blocks = body.layers if hasattr(body, "layers") else body.h
    ids, mask, last = padded()
    nbytes = ids.numel() * 32 * 4
    counts = []
    blocks[-1].register_forward_pre_hook(lambda *_: counts.append(len(live_storages(nbytes))))

    def run():
        body(input_ids=ids, attention_mask=mask, use_cache=False)

    def run_keeping_a_view():
        # One entry of a layer's output keeps all of it.
        kept = []
        handle = blocks[0].register_forward_hook(
            lambda _module, _args, output: kept.append((output if isinstance(output, torch.Tensor) else output[0])[0])
        )
        run()
        handle.remove()

    layout = find_layout(body)
    with torch.no_grad():
        run()
        run_keeping_a_view()
        results = [read(body, run, last, layout=layout, component=component) for component in COMPONENTS]
        results.append(read(body, run, last, layout=layout, readout="module"))
        results.extend(decompose(body, run, last, layout=layout))
    plain, keeping, *reading = counts
    assert keeping == plain + 1
    assert reading == [plain] * 5
    assert not live_storages(nbytes)
    for tensor in results:
        assert tensor.untyped_storage().nbytes() == len(ROWS) * 32 * 4


def causal_lm():
    model_type, settings = CONFIGS["llama"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**COMMON, **GQA, **settings})
    return AutoModelForCausalLM.from_config(config).float().eval()


def test_a_model_from_a_causal_lm_folder_has_no_head(tmp_path):
    model = causal_lm()
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    built = dysem_st.build(str(tmp_path), languages=["en", "fr"], prompt="source-text", device="cpu")
    assert any(name == "lm_head" for name, _ in model.named_modules())
    for name, module in built.named_modules():
        assert not name.endswith("lm_head") and getattr(module, "out_features", 0) != COMMON["vocab_size"]
    assert type(built[0].body).__name__ == "LlamaModel"
    # The weights are those of the folder.
    assert torch.equal(built[0].body.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)


def test_the_head_of_a_loaded_causal_lm_is_never_called(monkeypatch):
    model = causal_lm()

    def fail(*args, **kwargs):
        raise AssertionError("the language-model head was called")

    monkeypatch.setattr(model.lm_head, "forward", fail)
    with pytest.raises(AssertionError, match="head was called"):
        model(input_ids=torch.tensor([[3, 4]]))
    built = build(model)
    assert built.encode(["A text.", "Another."]).shape == (2, 64)
    assert built[0].body is model.model
