"""Makes types.gguf (one tensor of each supported type, metadata of every kind) and types.safetensors (what gguf-py
decodes from it, float32).

    python make_types.py    (numpy, gguf, safetensors)

Quantised tensors are random bytes with scales of sensible size, so every bit of a block matters.
"""
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
ROWS, COLUMNS = 3, 512
HALVES = {  # byte offsets of the f16 scales in a block
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}


def random_blocks(rng, kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // elements, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scale = rng.normal(0, 0.05, blocks.shape[:2]).astype(np.float16)
        scale.flat[0], scale.flat[1] = 3e-7, 0  # a subnormal half and a zero
        blocks[:, :, at:at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def main():
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(HERE / "types.gguf", "none")
    kinds = gguf.GGUFValueType
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4000000000)
    writer.add_int32("i32", -2000000000)
    writer.add_uint64("u64", 2**63 + 5)
    writer.add_int64("i64", -2**62)
    writer.add_float32("f32", 1.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve")
    for name, kind, values in [
            ("u8s", kinds.UINT8, [1, 255]), ("i8s", kinds.INT8, [-1, 127]), ("u16s", kinds.UINT16, [1, 65535]),
            ("i16s", kinds.INT16, [-1, 32767]), ("u32s", kinds.UINT32, [1, 4294967295]),
            ("i32s", kinds.INT32, [-1, 2147483647]), ("i64s", kinds.INT64, [-1, 2**40]),
            ("f32s", kinds.FLOAT32, [0.5, -2.0]), ("f64s", kinds.FLOAT64, [0.25, 4.0]),
            ("bools", kinds.BOOL, [True, False]), ("texts", kinds.STRING, ["a", "", "ccc"])]:
        writer.add_key_value(name, values, kinds.ARRAY, sub_type=kind)
    writer.add_key_value("nested", [[1, 2], [3, 4, 5]], kinds.ARRAY)

    wanted = {}
    floats = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    floats[0, :6] = [0.0, -0.0, 1e-40, 3.4e38, np.inf, -np.inf]
    halves = rng.normal(size=(ROWS, COLUMNS)).astype(np.float16)
    halves[0, :6] = [0.0, -0.0, 6e-8, -5e-5, 65504, np.inf]
    for kind in [Type.F32, Type.F16, Type.BF16, *HALVES]:
        if kind == Type.F32:
            data = floats
            wanted[kind.name] = floats
        elif kind == Type.F16:
            data = halves
            wanted[kind.name] = halves.astype(np.float32)
        elif kind == Type.BF16:
            data = gguf.quantize(floats, kind)
            wanted[kind.name] = gguf.dequantize(data, kind)
        else:
            data = random_blocks(rng, kind)
            wanted[kind.name] = gguf.dequantize(data, kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in wanted.items()}, HERE / "types.safetensors")
    (HERE / "types.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
