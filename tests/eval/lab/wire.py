"""The messages and calls of proto/, compiled when the program starts: no generated file to keep in step."""

import functools
import os
import pathlib
import tempfile

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[3] / "proto"
PACKAGE = "sluice.v1"


@functools.cache
def _pool():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "descriptors")
        files = sorted(str(path) for path in (PROTO / "sluice/v1").glob("*.proto"))
        code = protoc.main(["protoc", f"-I{PROTO}", f"-I{os.path.join(os.path.dirname(grpc_tools.__file__), '_proto')}",
                            "--include_imports", f"--descriptor_set_out={out}", *files])
        if code != 0:
            raise ValueError(f"{PROTO}: protoc failed with {code}")
        with open(out, "rb") as file:
            descriptors = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def message(name):
    """The class of sluice.v1.<name>."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


class Service:
    """The unary calls of sluice.v1.<name> as methods: call(request, timeout=seconds)."""

    def __init__(self, channel, name):
        service = _pool().FindServiceByName(f"{PACKAGE}.{name}")
        for method in service.methods:
            if not method.server_streaming and not method.client_streaming:
                setattr(self, method.name, channel.unary_unary(
                    f"/{service.full_name}/{method.name}",
                    request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
                    response_deserializer=message_factory.GetMessageClass(method.output_type).FromString))
