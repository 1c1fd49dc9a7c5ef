"""Building a `Graph`: names in, columns out.

Ops may be added in any order and may name inputs that come later; everything is resolved and
checked once, in `GraphBuilder.build`, so that a million ops cost a few seconds.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.base.arrays import UNSET, Codes, Csr, IntArray
from sim.base.errors import GraphError, UnknownNameError, hint
from sim.base.units import LARGEST
from sim.graph.attributes import convert_attributes
from sim.graph.graph import Graph, Role, split_output
from sim.graph.views import forwarded_nbytes

_N_COLUMNS = 10  # kind, dtype, pin, flops, bytes read and written, duration, stage, micro-batch, phase

Ref = str | int | tuple[str | int, int]
"""An input: a name or number, or (name, distance) for the tensor produced `distance` iterations earlier."""


class _Vocabulary(Codes[str]):
    """Maps strings to small codes, numbered in order of first use."""

    def __call__(self, word: str | None) -> int:
        if word is not None and not isinstance(word, str):
            raise GraphError(f"kind, device, dtype and phase should be text, not {word!r}")
        return UNSET if word is None else self[word]

    def all(self, words: Sequence[str], codes: IntArray) -> IntArray:
        """Return the codes of ``words[codes[0]], words[codes[1]], ...``; `UNSET` stays."""
        mapped = np.full(len(words) + 1, UNSET)  # the last entry is `UNSET`'s
        for code in dict.fromkeys(codes.tolist()):
            mapped[code] = UNSET if code == UNSET else self(words[code])
        return mapped[codes]


class _Refs:
    """Rows of references to tensors or ops, resolved as soon as their names are known.

    An entry is the number of an op's output (or of an op), or -2 - k for external tensor k, or -1
    for a name not yet seen, which waits in `later`.
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.counts, self.entries, self.distances = array("q"), array("q"), array("q")
        self.later: dict[int, tuple[int, str]] = {}

    def extend(self, rows: Csr, distances: IntArray | None = None) -> None:
        self.counts.frombytes(_bytes(rows.counts()))
        self.entries.frombytes(_bytes(rows.indices))
        self.distances.frombytes(_bytes(np.zeros(len(rows.indices)) if distances is None else distances))

    def csr(self, n_external: int, n: int) -> tuple[Csr, IntArray]:
        indices = np.array(self.entries, dtype=np.int64)
        external = indices <= -2
        wrong = indices[(indices >= n) | (indices == UNSET) | (indices < -1 - n_external)]
        if len(wrong):
            raise GraphError(f"{self.noun} {wrong[0]}: nothing has this number")
        np.subtract(-2, indices, out=indices, where=external)
        np.add(indices, n_external, out=indices, where=~external)
        counts, distances = (np.array(column, dtype=np.int64) for column in (self.counts, self.distances))
        return Csr.of_counts(counts, indices), distances


def _whole_number(name: str, number: Any, fact: str, unit: str = "", kind: str = "op") -> int:
    """Return a number of an op as an int, `UNSET` for None; raise if it is not whole, or negative."""
    if number is None:
        return UNSET
    try:
        if (value := int(number)) == number and 0 <= value <= LARGEST:
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    message = f"{kind} {name!r} has {fact} of {number!r}, which is no whole number{unit} from 0 to 2**63 - 1"
    raise GraphError(message).about(name)


class GraphBuilder:
    """Collects ops and tensors and builds an immutable `Graph`.

    Parameters
    ----------
    name : str
        The name of the graph.

    Examples
    --------
    >>> b = GraphBuilder("diamond")
    >>> b.op("a", duration_ns=10, outputs=1000)
    'a'
    >>> b.op("b", duration_ns=20, inputs=["a"])
    'b'
    >>> b.op("c", duration_ns=20, inputs=["a"])
    'c'
    >>> b.op("d", duration_ns=5, inputs=["b", "c"], after=["a"])
    'd'
    >>> b.build()
    <Graph 'diamond': 4 ops, 4 tensors, 5 edges>
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.device: str | None = None  # of ops that name none
        self.stream: object = None  # likewise, the attribute
        self._ops: dict[str, int] = {}
        self._externals: dict[str, int] = {}
        self._external_rows: list[tuple[int, int, int]] = []
        self._kinds, self._dtypes, self._pins, self._phases = (_Vocabulary() for _ in range(4))
        # Facts op by op (tuples would take five times the memory), and columns of many ops.
        self._rows, self._columns = array("q"), list[list[IntArray]]()
        self._inputs, self._after = _Refs("input"), _Refs("control input")
        self._sizes, self._first = array("q"), array("q", [0])
        self._duration_by_kind: dict[str, dict[int, int]] = {}
        self._attributes: dict[int, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        """Return the number of ops so far."""
        return len(self._ops)

    def __contains__(self, name: str) -> bool:
        """Whether an op, input or parameter of that name already exists."""
        return name in self._ops or name in self._externals

    def input(self, name: str, nbytes: int = 0, *, device: str | None = None) -> str:
        """Add a tensor that exists before time 0, once per iteration; return its name.

        Parameters
        ----------
        name : str
        nbytes : int
        device : str, optional
            The device that holds it; by default whichever device reads it.
        """
        return self._external(name, nbytes, Role.INPUT, device)

    def parameter(self, name: str, nbytes: int = 0, *, device: str | None = None) -> str:
        """Add a tensor that stays for the whole run (weights); return its name."""
        return self._external(name, nbytes, Role.PARAMETER, device)

    def _external(self, name: str, nbytes: int, role: int, device: str | None) -> str:
        self._claim(name)
        size = _whole_number(name, nbytes, "a size", " of bytes", "tensor")
        self._externals[name] = len(self._external_rows)
        self._external_rows.append((size, role, self._pins(device)))
        return name

    def _claim(self, name: str) -> None:
        if not name or not isinstance(name, str):
            raise GraphError(f"graph {self.name!r}: an op or tensor needs a name, not {name!r}")
        if name in self._ops or name in self._externals:
            raise GraphError(f"graph {self.name!r}: the name {name!r} is used twice").about(name)

    def op(
        self,
        name: str,
        *,
        kind: str = "op",
        inputs: Iterable[Ref] = (),
        after: Iterable[Ref] = (),
        outputs: int | Sequence[int] = (),
        duration_ns: int | None = None,
        duration_by_kind: Mapping[str, int] | None = None,
        flops: int = 0,
        bytes_read: int | None = None,
        bytes_written: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        stage: int | None = None,
        micro_batch: int | None = None,
        phase: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Add an op; return its name, which stands for its first output.

        Parameters
        ----------
        name : str
            Unique among ops, inputs and parameters.
        kind : str
            ``"matmul"``, ``"conv"``, ``"copy"``, ...
        inputs : iterable of str or (str, int)
            Tensors read: ``"a"`` (first output of op a, or an input), ``"a:1"`` (its second
            output), ``("a", 1)`` (as produced one iteration before). A name may be replaced by a number that
            `tensor` returned.
        after : iterable of str or (str, int)
            Ops that must end first, without data (control edges).
        outputs : int or sequence of int
            Size in bytes of each output tensor; an output that control flow passes on with 0 has its input's.
        duration_ns : int, optional
            Explicit duration on any device; the default is the estimate of the device's cost model.
        duration_by_kind : mapping of str to int, optional
            Explicit durations in ns for kinds of device (``{"cpu": 900, "gpu": 30}``).
        flops, bytes_read, bytes_written : int
            Cost facts. Bytes default to the sizes of the tensors read and written.
        device : str, optional
            Name of a device, or kind of device, on which the op must run.
        dtype : str, optional
            Data type of the computation (``"fp32"``, ``"bf16"``, ...).
        stage, micro_batch, phase : optional
            The op's place in a pipeline.
        attributes : mapping, optional
            Any other attributes.

        Raises
        ------
        GraphError
            A name that is empty or used twice, or a size, cost or duration that is negative or not whole.
        """
        self._claim(name)
        for mapping in filter(None, (duration_by_kind, attributes)):
            if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
                raise GraphError(f"op {name!r}: {mapping!r} should be a mapping of names").about(name)
        index = len(self._ops)
        many = outputs if isinstance(outputs, Iterable) else (outputs,)
        sizes = tuple(_whole_number(name, size, "an output", " of bytes") for size in many)
        row = (
            self._kinds(kind),
            self._dtypes(dtype),
            self._pins(self.device if device is None else device),
            _whole_number(name, flops, "flops"),
            _whole_number(name, bytes_read, "bytes_read"),
            _whole_number(name, bytes_written, "bytes_written"),
            _whole_number(name, duration_ns, "a duration", " of ns"),
            _whole_number(name, stage, "stage"),
            _whole_number(name, micro_batch, "micro_batch"),
            self._phases(phase),
        )
        self._ops[name] = index
        self._rows.extend(row)
        self._sizes.extend(sizes or (0,))
        self._add_references(self._inputs, index, inputs, self._output)
        self._add_references(self._after, index, after, self._ops.get)
        self._first.append(len(self._sizes))
        for device_kind, ns in (duration_by_kind or {}).items():
            own_ns = _whole_number(name, ns, f"a duration on {device_kind}", " of ns")
            self._duration_by_kind.setdefault(device_kind, {})[index] = own_ns
        if attributes or self.stream is not None:
            stream = {} if self.stream is None else {"stream": self.stream}
            self._attributes[index] = {**stream, **(attributes or {})}
        return name

    def append(self, name: str, **facts: Any) -> int:
        """Add an op, with the same arguments as `op`; return its number instead of its name.

        For generators of graphs, which keep track of numbers: ``after`` takes these numbers, and ``inputs``
        those that `tensor` and `external` return.

        Examples
        --------
        >>> b = GraphBuilder("two")
        >>> a = b.append("a", kind="F", outputs=(8, 4), duration_ns=1, device="gpu0")
        >>> _ = b.append("b", kind="F", inputs=(b.tensor(a, 1),), duration_ns=1, device="gpu0")
        >>> b.build()
        <Graph 'two': 2 ops, 3 tensors, 1 edge>
        """
        self.op(name, **facts)
        return len(self._ops) - 1

    def extend(
        self,
        names: Sequence[str] | dict[str, int],
        *,
        kind: tuple[Sequence[str], IntArray],
        inputs: Csr,
        outputs: Csr,
        duration_ns: IntArray,
        device: tuple[Sequence[str], IntArray],
        after: Csr,
        stage: IntArray | int = UNSET,
        micro_batch: IntArray | int = UNSET,
        phase: tuple[Sequence[str], IntArray] | None = None,
        dtype: tuple[Sequence[str], IntArray] | None = None,
        flops: IntArray | int = 0,
        bytes_read: IntArray | int = UNSET,
        bytes_written: IntArray | int = UNSET,
        input_distance: IntArray | None = None,
        after_distance: IntArray | None = None,
        duration_by_kind: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
        attributes: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Add many ops at once, as columns: equivalent to `op` for each of them, but a hundred times faster.

        Parameters
        ----------
        names : sequence of str, or dict of str to int
            Names of all ops in order; a dict also gives their numbers, and the builder keeps it.
        kind, device, phase : (sequence of str, array)
            Words, and for each op the index of its word.
        inputs, after : Csr
            Op → numbers of the tensors it reads, and of the ops that it follows. The ops of this call have
            the numbers from ``len(builder)`` on.
        outputs : Csr
            Op → sizes of its outputs in bytes, at least one.
        duration_ns, stage, micro_batch : array
            One value per op; -1 for none.
        dtype : (sequence of str, array), optional
            Words, and for each op the index of its word, as for `kind`.
        flops, bytes_read, bytes_written : array
            One value per op; -1 to use the bytes of the tensors.
        input_distance, after_distance : array, optional
            One value per entry of `inputs`, and of `after`.
        duration_by_kind : mapping of str to mapping of int to int
            Kind of device → op → ns.
        attributes : mapping of int to mapping
            Op → further attributes, which the builder keeps; ops may share a mapping.

        Raises
        ------
        GraphError
            A name used twice.

        Examples
        --------
        >>> b, both = GraphBuilder("two"), np.zeros(2, np.int64)
        >>> b.extend(
        ...     ["a", "b"],
        ...     kind=(["F"], both),
        ...     inputs=Csr(np.array([0, 0, 1]), np.array([0])),
        ...     outputs=Csr(np.array([0, 1, 2]), np.array([8, 0])),
        ...     duration_ns=np.array([10, 20]),
        ...     device=(["gpu0"], both),
        ...     after=Csr(np.zeros(3, np.int64), both[:0]),
        ...     stage=both,
        ...     micro_batch=both,
        ...     phase=(["F"], both),
        ... )
        >>> b.build()
        <Graph 'two': 2 ops, 2 tensors, 1 edge>
        """
        before, n = len(self._ops), len(names)
        if isinstance(names, dict) and not self._ops:
            self._ops = names
        else:
            self._ops.update(zip(names, range(before, before + n), strict=True))
        if len(self._ops) < before + n or not self._ops.keys().isdisjoint(self._externals):
            used = set(itertools.islice(self._ops, before)) | self._externals.keys()
            for name in names:
                if name in used:
                    raise GraphError(f"graph {self.name!r}: the name {name!r} is used twice")
                used.add(name)
        self._gather()
        columns: tuple[IntArray | int, ...] = (
            *(self._kinds.all(*kind), UNSET if dtype is None else self._dtypes.all(*dtype)),
            *(self._pins.all(*device), flops, bytes_read, bytes_written),
            *(duration_ns, stage, micro_batch, UNSET if phase is None else self._phases.all(*phase)),
        )
        self._columns.append([np.broadcast_to(np.asarray(values, np.int64), n) for values in columns])
        self._inputs.extend(inputs, input_distance)
        self._after.extend(after, after_distance)
        for device_kind, times in duration_by_kind.items():
            self._duration_by_kind.setdefault(device_kind, {}).update(times)
        self._attributes.update(attributes)
        self._first.frombytes(_bytes(len(self._sizes) + outputs.indptr[1:]))
        self._sizes.frombytes(_bytes(outputs.indices))

    def tensor(self, op: int, k: int = 0) -> int:
        """Return the number of output `k` of an op (given by number), for use in `inputs`."""
        return self._first[op] + k

    def external(self, name: str) -> int:
        """Return the number of an input or parameter, for use in `inputs`.

        Raises
        ------
        UnknownNameError
            There is no input or parameter of that name.
        """
        if name not in self._externals:
            raise UnknownNameError("input or parameter", name, self._externals)
        return -2 - self._externals[name]

    def build(self) -> Graph:
        """Check everything and return the graph.

        Raises
        ------
        GraphError
            There is no op, nothing produces an input (the message has known names), there is a cycle
            (which is named), or an attribute has a wrong type.
        """
        n = len(self._ops)
        if n == 0:
            raise GraphError(f"graph {self.name!r} is empty: it has no op")
        self._resolve(self._inputs, self._output)
        self._resolve(self._after, self._ops.get)
        self._gather()
        kind, dtype, pin, flops, read, written, duration, stage, micro_batch, phase = (
            chunks[0] if len(chunks) == 1 and chunks[0].flags.carray else np.concatenate(chunks)
            for chunks in zip(*self._columns, strict=True)
        )
        external = np.array(self._external_rows, dtype=np.int64).reshape(-1, 3)
        bounds = np.array(self._first, dtype=np.int64)
        nbytes = np.concatenate((external[:, 0], np.asarray(self._sizes)))
        outputs = Csr(bounds, np.arange(len(external), len(nbytes)))
        inputs, input_distance = self._inputs.csr(len(external), len(self._sizes))
        nbytes = forwarded_nbytes(nbytes, tuple(self._kinds), kind, inputs, outputs)
        after, after_distance = self._after.csr(0, n)
        of_ops = 0, len(nbytes) - len(external)
        graph = Graph(
            name=self.name,
            op_names=list(self._ops),
            kinds=tuple(self._kinds),
            kind_code=kind,
            dtypes=tuple(self._dtypes),
            dtype_code=dtype,
            pins=tuple(self._pins),
            pin_code=pin,
            flops=flops,
            bytes_read=np.where(read == UNSET, inputs.sums(nbytes), read),
            bytes_written=np.where(written == UNSET, outputs.sums(nbytes), written),
            duration_ns=duration,
            duration_by_kind={k: _dense(v, n) for k, v in self._duration_by_kind.items()},
            stage=stage,
            micro_batch=micro_batch,
            phases=tuple(self._phases),
            phase_code=phase,
            outputs=outputs,
            inputs=inputs,
            input_distance=input_distance,
            after=after,
            after_distance=after_distance,
            tensor_producer=np.concatenate((np.full(len(external), UNSET), outputs.rows())),
            tensor_nbytes=nbytes,
            tensor_role=np.pad(external[:, 1], of_ops),
            tensor_pin=np.pad(external[:, 2], of_ops, constant_values=UNSET),
            external_names=list(self._externals),
            attributes=dict(self._attributes),
        )
        _ = graph.topological_order  # refuses a cycle
        return convert_attributes(graph)

    def _gather(self) -> None:
        """Turn the rows collected so far into columns."""
        if self._rows:
            self._columns.append([*np.array(self._rows).reshape(-1, _N_COLUMNS).T])
            self._rows = array("q")

    def _add_references(
        self, refs: _Refs, consumer: int, references: Iterable[Ref], find: Callable[[str], int | None]
    ) -> None:
        before = len(refs.entries)
        if isinstance(references, str) or not isinstance(references, Iterable):
            raise self._wrong(consumer, f"{references!r} should stand in a list: [{references!r}]")
        for ref in references:
            try:
                name, distance = (ref, 0) if isinstance(ref, str | int | np.integer) else ref
                entry = find(name) if isinstance(name, str) else operator.index(name)
                valid = 0 <= operator.index(distance) <= LARGEST
            except (TypeError, ValueError):
                valid = False
            if not valid:
                expected = "a name, or a name and a distance, a whole number from 0 on"
                raise self._wrong(consumer, f"{refs.noun} {ref!r} should be {expected}")
            if entry is None:
                refs.later[len(refs.entries)] = (consumer, str(name))
            refs.entries.append(UNSET if entry is None else entry)
            refs.distances.append(distance)
        refs.counts.append(len(refs.entries) - before)

    def _resolve(self, refs: _Refs, find: Callable[[str], int | None]) -> None:
        """Resolve the names that were not known when they were used."""
        for position, (consumer, name) in refs.later.items():
            entry = find(name)
            if entry is None:
                key = "inputs" if refs.noun == "input" else "after"
                error = GraphError(self._unknown(consumer, name, refs.noun))
                raise error.about(self._name(consumer), key, name)
            refs.entries[position] = entry
        refs.later.clear()

    def _output(self, name: str) -> int | None:
        """Return the entry (see `_Refs`) of the tensor called `name`, or None if it does not exist yet."""
        op = self._ops.get(name)
        if op is not None:
            return self._first[op] if op + 1 < len(self._first) else None
        if name in self._externals:
            return -2 - self._externals[name]
        base, k = split_output(name) or (name, 0)
        op = self._ops.get(base)
        if op is None or op + 1 >= len(self._first) or k >= self._first[op + 1] - self._first[op]:
            return None
        return self._first[op] + k

    def _unknown(self, consumer: int, name: str, noun: str) -> str:
        subject = f"graph {self.name!r}: op {self._name(consumer)!r}"
        base, _ = split_output(name) or (name, 0)
        if noun == "input" and base in self._ops:
            op = self._ops[base]
            count = self._first[op + 1] - self._first[op]
            return f"{subject} reads {name!r}, but {base!r} has {count} output(s)"
        known = [*self._ops, *self._externals] if noun == "input" else self._ops
        return f"{subject} has an unknown {noun} {name!r}{hint(name, known)}"

    def _wrong(self, op: int, problem: str) -> GraphError:
        return GraphError(f"op {self._name(op)!r}: {problem}").about(self._name(op))

    def _name(self, op: int) -> str:
        return list(self._ops)[op]


def _bytes(values: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values, dtype=np.int64).view(np.uint8).data


def _dense(sparse: Mapping[int, int], n: int) -> IntArray:
    column = np.full(n, UNSET, dtype=np.int64)
    column[list(sparse)] = list(sparse.values())
    return column
