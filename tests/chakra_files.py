"""Chakra traces as Chakra writes them: the encoding of protobuf, the other way round."""


def varint(number):
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value % 2**64)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(
    id, name="op", type=4, *, ctrl=(), data=(), us=1, start=None, inputs=None, outputs=None, **attributes
):
    """A node as Chakra writes it; attributes are truth values, numbers, texts or lists of truth values."""
    message = field(1, id) + field(2, name) + field(3, type)
    message += field(4, b"".join(map(varint, ctrl))) + field(5, b"".join(map(varint, data))) + field(7, us)
    message += b"" if start is None else field(6, start)
    for number, tensors in ((8, inputs), (9, outputs)):
        if tensors is not None:
            message += field(number, field(1, tensors) + field(2, "[[8]]"))
    for key, value in attributes.items():
        if isinstance(value, list):
            message += field(10, field(1, key) + field(28, field(1, bytes(map(int, value)))))
            continue
        kind = 27 if isinstance(value, bool) else 9 if isinstance(value, int) else 29
        message += field(10, field(1, key) + field(kind, int(value) if isinstance(value, bool) else value))
    return message


def tensors(*storages, device="cuda:0"):
    """Inputs or outputs of four bytes each, by their storages."""
    return str([[100 + storage, storage, 0, 1, 4, device] for storage in storages])


def host(id, name, tid=1, **more):
    """An operator of PyTorch, on a thread."""
    return node(id, name, is_cpu_op=True, tid=tid, rf_id=id, **more)


def kernel(id, name="k", stream=7, *, by, **more):
    """A kernel that an operator launched."""
    return node(id, name, is_cpu_op=False, stream=stream, tid=1, data=[by], rf_id=by, **more)


def trace_of(*nodes):
    """A file: metadata, then the nodes."""
    return b"".join(varint(len(message)) + message for message in [field(1, "0.0.4"), *nodes])
