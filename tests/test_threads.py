"""Threads, worker processes, copies, hooks, and bodies that are compiled, adapted or placed."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import dysem_st

EN, FR, DE = "eng_Latn", "fra_Latn", "deu_Latn"
VIEWS = [("source", EN), ("source", FR)]
TEXTS = [f"Text {i}: a man is playing the guitar{' and sings' * (i % 5)}." for i in range(24)]


def build(base, **settings):
    chosen = {"k": 8, "device": "cpu", **settings}
    if "languages" not in chosen:
        chosen.setdefault("views", VIEWS)
    return dysem_st.build(base, **chosen)


def parts(base, name="llama"):
    return AutoModel.from_pretrained(base(name)).eval(), AutoTokenizer.from_pretrained(base(name))


def shout(texts, source, target):
    return [f"{target} {text.upper()}" for text in texts]


def hooks(model):
    """How many hooks hang on a model's modules, of every kind."""
    return sum(
        len(registered)
        for module in model.modules()
        for name, registered in vars(module).items()
        if name.endswith("_hooks") and isinstance(registered, dict)
    )


@pytest.fixture(scope="module")
def model(base):
    return build(base("llama"))


# Threads


def test_eight_threads_on_one_model_give_the_serial_rows(base):
    model = build(base("llama"), languages=[EN, DE], translator=shout)
    jobs = [(TEXTS[i : i + 6], DE if i % 2 else EN) for i in range(16)]
    serial = [model.encode(texts, language=code, batch_size=3) for texts, code in jobs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            futures = [pool.submit(model.encode, texts, language=code, batch_size=3) for texts, code in jobs]
            for future, expected in zip(futures, serial, strict=True):
                np.testing.assert_array_equal(future.result(), expected)


def test_two_models_on_one_body_give_the_serial_rows_under_threads(base):
    body, tokenizer = parts(base)
    models = [build(body, tokenizer=tokenizer, component=component) for component in ("attention", "ffn")]
    serial = [model.encode(TEXTS) for model in models]
    assert np.abs(serial[0] - serial[1]).max() > 1e-3
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(models[i % 2].encode, TEXTS, batch_size=32) for i in range(16)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), serial[i % 2])


def test_one_threads_shortening_is_reported_by_its_own_call(base, caplog):
    model = build(base("llama"), max_seq_length=64)
    batches = [["a cat " * 60] * count + ["short"] for count in range(1, 9)]
    with caplog.at_level("WARNING", logger="dysem_st"), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda batch: model.encode(batch, batch_size=1), batches))
    counts = sorted(record.getMessage().split(" texts")[0] for record in caplog.records if "texts" in record.msg)
    assert counts == [f"{count} of {count + 1}" for count in range(1, 9)]


# Worker processes


@pytest.fixture(scope="module")
def pooled(base):
    model = build(base("llama"), languages=[EN, DE], translator=shout)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    yield model, pool
    model.stop_multi_process_pool(pool)


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_a_pool_of_processes_keeps_order_and_gives_the_serial_rows(pooled, chunk_size):
    model, pool = pooled
    expected = model.encode(TEXTS)
    rows = model.encode(TEXTS, pool=pool, chunk_size=chunk_size)
    np.testing.assert_allclose(rows[:, :32], expected[:, :32], atol=1e-4 * np.abs(expected).max())


def test_a_pool_keeps_each_language_with_its_text(pooled):
    model, pool = pooled
    codes = [(EN, DE, FR)[i % 3] for i in range(len(TEXTS))]
    expected = model.encode(TEXTS, language=codes)
    rows = model.encode(TEXTS, language=codes, pool=pool, chunk_size=5)
    np.testing.assert_allclose(rows[:, :32], expected[:, :32], atol=1e-4 * np.abs(expected).max())
    assert np.abs(expected - model.encode(TEXTS)).max() > 1e-3


def test_a_pool_hands_a_workers_error_on(pooled):
    model, pool = pooled
    with pytest.raises(ValueError, match=r"unheard|choose one of error, drop"):
        model.encode(TEXTS, pool=pool, missing="unheard")
    with pytest.raises(TypeError, match=r"input 1\b"):
        model.encode(["a", None], pool=pool)


def test_no_texts_for_a_pool_give_an_empty_result(pooled):
    model, pool = pooled
    assert len(model.encode([], pool=pool)) == 0


# Copies

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_encodes_with_its_own_weights_and_scores_alike(base, make):
    model = build(base("llama"), languages=[EN, DE], translator=shout)
    expected = model.encode(TEXTS)
    twin = make(model)
    rows = twin.encode(TEXTS)
    np.testing.assert_array_equal(rows, expected)
    assert torch.equal(twin.similarity(rows, rows), model.similarity(expected, expected))
    assert twin.similarity_fn_name == model.similarity_fn_name
    assert not twin.similarity_fn_name
    with torch.no_grad():
        for parameter in twin[0].body.parameters():
            parameter.mul_(1.5)
    assert np.abs(twin.encode(TEXTS) - expected).max() > 1e-3
    np.testing.assert_array_equal(model.encode(TEXTS), expected)
    twin[0].translator = None
    with pytest.raises(ValueError, match="deu_Latn"):
        twin.encode(TEXTS)
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_encodes_with_its_own_prompts_and_limit(base, make):
    model = build(base("llama"), prompts={"query": "Q: "})
    twin = make(model)
    twin.prompts["query"] = "Something else: "
    twin.max_seq_length = 200
    np.testing.assert_array_equal(twin.encode_query(TEXTS), model.encode(TEXTS, prompt="Something else: "))
    assert (model.max_seq_length, twin.max_seq_length) == (256, 200)


# Hooks


def test_hooks_are_gone_after_every_call(base):
    model = build(base("gemma3_text"))
    before = hooks(model)
    for _ in range(3):
        model.encode(TEXTS)
    assert hooks(model) == before


@pytest.mark.parametrize("component", ["attention", "ffn", "hidden"])
def test_hooks_are_gone_after_an_exception(base, component):
    model = build(base("llama"), component=component)
    expected = model.encode(TEXTS)

    def fail(module, args):
        raise RuntimeError("a failing block")

    handle = model[0].body.layers[2].register_forward_pre_hook(fail)
    before = hooks(model)
    with pytest.raises(RuntimeError, match="a failing block"):
        model.encode(TEXTS)
    assert hooks(model) == before
    handle.remove()
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_a_callers_own_hooks_stay(base):
    model = build(base("llama"))
    seen = []
    model[0].body.layers[1].self_attn.register_forward_hook(lambda *args: seen.append(1))
    before = hooks(model)
    model.encode(TEXTS[:2])
    model.encode(TEXTS[:2])
    assert len(seen) >= 2
    assert hooks(model) == before


def test_the_language_model_head_is_never_called(base):
    causal = AutoModelForCausalLM.from_pretrained(base("llama"))
    model = build(causal, tokenizer=AutoTokenizer.from_pretrained(base("llama")))

    def fail(*args):
        raise AssertionError("the head was called")

    causal.lm_head.register_forward_hook(fail)
    np.testing.assert_array_equal(model.encode(TEXTS), build(base("llama")).encode(TEXTS))


def test_a_callers_body_is_left_as_it_was(base):
    body, tokenizer = parts(base)
    body.config.use_cache = True
    weights = {name: parameter.clone() for name, parameter in body.named_parameters()}
    build(body, tokenizer=tokenizer).encode(TEXTS)
    assert body.config.use_cache is True
    assert hooks(body) == 0
    assert all(torch.equal(weights[name], parameter) for name, parameter in body.named_parameters())


def test_a_callers_tokenizer_gives_what_it_gave_before(base):
    body, tokenizer = parts(base)
    tokenizer.padding_side = "left"
    options = {"padding": "max_length", "truncation": True, "max_length": 12}
    texts = ["<eos> a man", "a man is playing the guitar and a woman eats"]
    before = tokenizer(texts, **options).input_ids
    plain = tokenizer(texts).input_ids
    model = build(body, tokenizer=tokenizer)
    expected = model.encode(TEXTS)
    assert tokenizer(texts, **options).input_ids == before
    # The caller's call leaves padding and truncation on in the shared backend.
    np.testing.assert_array_equal(model.encode(TEXTS), expected)
    assert tokenizer(texts).input_ids == plain
    assert tokenizer.padding_side == "left"


# Compiled, adapted and placed bodies


def compile_body(model):
    model[0].body.compile(backend="eager")


def wrap_body(model):
    model[0].body = torch.compile(model[0].body, backend="eager")


def compile_block(model):
    model[0].body.layers[1].compile(backend="eager")


def compile_model(model):
    model.compile(backend="eager")


@pytest.mark.parametrize("way", [compile_body, wrap_body, compile_block, compile_model])
def test_a_compiled_body_is_right_or_refused(base, model, way):
    compiled = build(base("llama"))
    way(compiled)
    try:
        rows = compiled.encode(TEXTS[:3])
    except RuntimeError as error:
        assert "torch.compile" in str(error)  # noqa: PT017
    else:
        np.testing.assert_allclose(rows, model.encode(TEXTS[:3]), atol=1e-5)
    finally:
        torch._dynamo.reset()


LORA = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "o_proj"], "init_lora_weights": False}


def assert_equal_to_merged(model, merged, plain):
    rows, expected = model.encode(TEXTS), merged.encode(TEXTS)
    np.testing.assert_allclose(rows[:, :32], expected[:, :32], atol=1e-4 * np.abs(expected).max())
    assert np.abs(expected - plain.encode(TEXTS)).max() > 1e-3


def test_a_peft_wrapped_body_equals_its_merged_weights(base, model):
    body, tokenizer = parts(base)
    torch.manual_seed(0)
    wrapped = get_peft_model(body, LoraConfig(**LORA)).eval()
    adapted = build(wrapped, tokenizer=tokenizer)
    merged = build(copy.deepcopy(wrapped).merge_and_unload(), tokenizer=tokenizer)
    assert_equal_to_merged(adapted, merged, model)


def add_with_peft(body):
    inject_adapter_in_model(LoraConfig(**LORA), body)


def add_with_transformers(body):
    pytest.importorskip("peft", minversion="0.22")  # what transformers asks for
    body.add_adapter(LoraConfig(**LORA))


@pytest.mark.parametrize("add", [add_with_peft, add_with_transformers])
def test_an_adapter_added_to_a_body_equals_its_merged_weights(base, model, add):
    body, tokenizer = parts(base)
    torch.manual_seed(0)
    wrapped = get_peft_model(copy.deepcopy(body), LoraConfig(**LORA)).eval()
    add(body)
    body.load_state_dict(wrapped.get_base_model().state_dict())
    adapted = build(body, tokenizer=tokenizer)
    merged = build(wrapped.merge_and_unload(), tokenizer=tokenizer)
    assert_equal_to_merged(adapted, merged, model)


def test_a_disabled_adapter_changes_nothing(base, model):
    body, tokenizer = parts(base)
    wrapped = get_peft_model(body, LoraConfig(**LORA)).eval()
    adapted = build(wrapped, tokenizer=tokenizer)
    with wrapped.disable_adapter():
        np.testing.assert_array_equal(adapted.encode(TEXTS), model.encode(TEXTS))
    assert np.abs(adapted.encode(TEXTS) - model.encode(TEXTS)).max() > 1e-3


def test_a_peft_wrapped_causal_model_is_right_or_refused(base):
    causal = AutoModelForCausalLM.from_pretrained(base("llama"))
    tokenizer = AutoTokenizer.from_pretrained(base("llama"))
    torch.manual_seed(0)
    wrapped = get_peft_model(causal, LoraConfig(**LORA)).eval()
    try:
        adapted = build(wrapped, tokenizer=tokenizer)
    except (TypeError, ValueError) as error:
        assert "LlamaForCausalLM" in str(error)  # noqa: PT017
        return
    merged = build(copy.deepcopy(wrapped).merge_and_unload(), tokenizer=tokenizer)
    rows, expected = adapted.encode(TEXTS), merged.encode(TEXTS)
    np.testing.assert_allclose(rows[:, :32], expected[:, :32], atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("where", ["whole", "offloaded"])
def test_a_device_map_gives_the_same_rows(base, model, tmp_path, where):
    pytest.importorskip("accelerate")
    names = ["embed_tokens", "rotary_emb", "norm", *(f"layers.{i}" for i in range(4))]
    sharded = {name: "disk" if name in ("layers.1", "layers.3") else "cpu" for name in names}
    placed = dysem_st.build(
        base("llama"),
        views=VIEWS,
        k=8,
        model_kwargs={
            "device_map": "cpu" if where == "whole" else sharded,
            "offload_folder": str(tmp_path),
        },
    )
    np.testing.assert_array_equal(placed.encode(TEXTS), model.encode(TEXTS))


def test_a_moved_or_cast_model_gives_float32_rows(base, model):
    moved = build(base("llama"))
    moved.to("cpu").to(torch.bfloat16)
    rows = moved.encode(TEXTS, device="cpu")
    assert rows.dtype == np.float32
    cosine = torch.cosine_similarity(dysem_st.unpack(rows)[0], dysem_st.unpack(model.encode(TEXTS))[0])
    assert cosine.min() > 0.98
