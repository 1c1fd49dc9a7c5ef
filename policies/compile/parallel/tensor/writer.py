"""The program of a tensor-parallel rank, op by op: what each needs of its inputs, and what it makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Final

from policies.compile.parallel.program import COMPUTE
from policies.compile.parallel.tensor.exchanges import PART, SEQUENCE, SPLIT, WHOLE, Exchanges
from policies.compile.parallel.tensor.plan import LOSSES, PRODUCTS, Plan, data_and_weight
from policies.compile.parallel.training_step import TrainingStep, parts_of_gradients
from policies.compile.records import Record, Records
from policies.compile.training.backward import elements
from sim.words.units import round_half_up

__all__ = ["Writer"]

_SUMS: Final = frozenset({"add_n", "add"})

_LINEAR: Final = _SUMS | {"identity", "reshape", "transpose", "cast"}
"""Kinds that give a part of a sum when they are given parts."""

_ON_TOKENS = """
    relu relu6 sigmoid tanh gelu silu elu leaky_relu softplus exp log sqrt rsqrt reciprocal square neg
    abs erf mish hard_swish sub mul div bias_add dropout copy layer_norm rms_norm flatten squeeze
    unsqueeze slice strided_slice split concat pack unpack pad expand relu_grad gelu_grad silu_grad
    sigmoid_grad tanh_grad layer_norm_grad rms_norm_grad bias_add_grad reduce_sum rotary_embedding
    loss_grad sparse_softmax_cross_entropy softmax_cross_entropy read_variable
"""

_TOKENWISE: Final = _LINEAR | frozenset(_ON_TOKENS.split())
"""Kinds that work on each token by itself, or sum up over tokens for the gradient of a parameter."""


class Writer(Exchanges):
    """Writes the program of a rank, op by op."""

    def __init__(
        self,
        records: Records,
        order: Sequence[str],
        plan: Plan,
        t: int,
        step: TrainingStep | None,
        sequence: bool,
    ) -> None:
        super().__init__(records, t, sequence)
        self.plan = plan
        for name, given in records.externals.items():
            self.state[name] = SPLIT if name in plan.split else WHOLE
            nbytes = self.share(given.nbytes) if name in plan.split else given.nbytes
            self.records.externals[name] = replace(given, nbytes=nbytes)
        ops = [records.ops[name] for name in order]
        self.parameters = [] if step is None else step.parameters
        made = {each.gradient: each.name for each in self.parameters}
        self.gradient_of = parts_of_gradients(records, made)
        """Gradient, or part of its sum → parameter."""
        names = {each.update for each in self.parameters}
        updates = [record for record in ops if record.name in names]
        self.input_of = {weight: plan.product[name][0] for name, weight in self._columns()}
        found = [each for each in ops if each.kind == "gather" and each.inputs[0][0] in plan.split]
        self.looked_up = {tensor for each in found for tensor, _ in each.inputs}
        for record in ops:
            if record.name not in names:
                self.issue(record)
        self._finish(updates)

    def _columns(self) -> list[tuple[str, str]]:
        return [(name, self.plan.product[name][1]) for name, r in self.plan.role.items() if r != "row"]

    # -- ops ------------------------------------------------------------------------------------

    def issue(self, record: Record) -> None:
        """Write an op of forward or backward, and what is communicated before and behind it."""
        tensors = [tensor for tensor, _ in record.inputs]
        pair = data_and_weight(self.old, record)
        states = [self.of(tensor) for tensor in tensors]
        if record.kind in PRODUCTS and pair is not None and pair[1] in self.plan.split:
            self._with_weight(record, *pair)
        elif record.kind in PRODUCTS and pair is None and SPLIT not in states:
            self._unsplit_product(record, tensors)
        elif record.kind == "gather" and self.of(tensors[0]) == SPLIT:
            self.write(record, {}, PART, share=False)
        elif self.gradient_of.get(record.name) in self.looked_up and record.kind not in (*PRODUCTS, *_LINEAR):
            own = self.gradient_of[record.name] in self.plan.split
            self.write(record, dict.fromkeys(tensors, WHOLE), SPLIT if own else WHOLE)
        elif SPLIT in states:
            self._split(record, tensors)
        elif PART in states and all(state == PART for state in states) and record.kind in _LINEAR:
            self.write(record, {}, PART, share=False)
        elif SEQUENCE in states or (PART in states and self.sequence):
            fits = record.kind in _TOKENWISE or (record.kind in PRODUCTS and pair is not None)
            fits = fits or record.kind == "embedding_grad"
            self._on_tokens(record, tensors) if fits else self.write(
                record, dict.fromkeys(tensors, WHOLE), WHOLE
            )
        else:
            self._sum_parts(record, tensors, states)
            self.write(record, dict.fromkeys(tensors, WHOLE), WHOLE)

    def _with_weight(self, record: Record, data: str, weight: str) -> None:
        """Write a product with a weight of which the rank has a part."""
        role = self.plan.role.get(record.name)
        if role is not None:
            needs = SPLIT if role == "row" else WHOLE
            self.write(record, {data: needs}, PART if role == "row" else SPLIT)
            return
        x = self.input_of.get(weight)
        if self.of(data) == SPLIT:  # the gradient of what a column reads
            if x is not None and self.of(x) == SEQUENCE:
                self.whole(x, backward=True, beside=True)
            self.write(record, {}, PART)
        else:
            self.write(record, {data: WHOLE}, SPLIT)

    def _unsplit_product(self, record: Record, tensors: Sequence[str]) -> None:
        """Write the gradient of a weight that is whole, or a product of two tensors that are."""
        states = {self.of(tensor) for tensor in tensors}
        if states == {SEQUENCE} and record.name in self.gradient_of:
            self.write(record, {}, PART)
        else:
            self.write(record, dict.fromkeys(tensors, WHOLE), WHOLE)

    def _split(self, record: Record, tensors: Sequence[str]) -> None:
        """Write an op that works on columns or heads, or on what it makes of them."""
        needs = {tensor: WHOLE for tensor in tensors if self.of(tensor) != SPLIT}
        if record.kind in LOSSES:
            self._loss(record, tensors[0])
        self.write(record, needs, SPLIT)

    def _on_tokens(self, record: Record, tensors: Sequence[str]) -> None:
        """Write an op that works on some of the tokens."""
        self._sum_parts(record, tensors, [self.of(tensor) for tensor in tensors])
        self.write(record, {tensor: SEQUENCE for tensor in tensors if self.of(tensor) == PART}, SEQUENCE)

    def _sum_parts(self, record: Record, tensors: Sequence[str], states: Sequence[str]) -> None:
        """Add parts up before they are summed over ranks, if an op adds them to what is no part."""
        parts = [tensor for tensor, state in zip(tensors, states, strict=True) if state == PART]
        if record.kind in _SUMS and len(parts) > 1 and len(parts) < len(tensors):
            nbytes = self.old.nbytes(parts[0])
            name = self.free(f"{record.name}/parts")
            own = Record(name, "add_n", [(part, 0) for part in parts], [], (nbytes,), phase=record.phase)
            own.flops = (len(parts) - 1) * elements(nbytes, record.dtype)
            own.bytes_read, own.bytes_written, own.dtype = len(parts) * nbytes, nbytes, record.dtype
            own.attributes = {"stream": COMPUTE}
            self.records.ops[name] = own
            self.old.ops[name] = replace(own)
            self.state[name] = PART
            whole = self.reduced(name)
            zero = parts[1:]
            record.inputs = [
                (name if tensor == parts[0] else tensor, d)
                for tensor, d in record.inputs
                if tensor not in zero
            ]
            tensors = [tensor for tensor, _ in record.inputs]
            assert whole

    def _loss(self, record: Record, logits: str) -> None:
        """Sum the maximum, what was predicted and the denominator of the softmax of each token."""
        maker = self.old.producer(logits)
        m = maker.attributes.get("m") if maker is not None else None
        if m is None:
            m = max(1, elements(self.old.nbytes(record.inputs[1][0]), "fp64"))  # labels are int64
        for what in ("maximum", "predicted", "denominator"):
            self.collective(f"{record.name}/{what}", "all_reduce", logits, 4 * m, 4 * m, record)

    def write(self, record: Record, needs: Mapping[str, str], makes: str, *, share: bool = True) -> None:
        """Write an op: what it needs of some inputs, what it makes, whether it is a part of the work."""
        inputs = []
        for tensor, distance in record.inputs:
            want = needs.get(tensor)
            source = self.moved.get(tensor, tensor)
            if want == WHOLE:
                source = self.whole(tensor, backward=record.phase not in (None, "F"))
            elif want is not None and self.of(tensor) == PART:
                source = self.reduced(tensor)
            inputs.append((source, distance))
        share = share and makes != WHOLE
        outputs, states = [], []
        for k, nbytes in enumerate(record.outputs):
            state = makes
            parameter = self.gradient_of.get(record.tensor(k))
            if parameter is not None and makes in (SPLIT, SEQUENCE):
                state = SPLIT if parameter in self.plan.split else PART
            if record.kind in LOSSES and k == 0:
                state = WHOLE if makes == SPLIT else makes
            states.append(state)
            outputs.append(self.share(nbytes) if state in (SPLIT, SEQUENCE) else nbytes)
        read_ = {t: self._size(s, makes, t) for (s, _), (t, _) in zip(inputs, record.inputs, strict=True)}
        before = sum(self.old.nbytes(tensor) for tensor in read_)
        n = self.t if share else 1
        after = [(name, d) for name, d in record.after]
        self.records.ops[record.name] = replace(
            record,
            inputs=inputs,
            after=after,
            outputs=tuple(outputs),
            flops=-(-record.flops // n),
            bytes_read=_scaled(record.bytes_read, sum(read_.values()), before)
            if share
            else record.bytes_read,
            bytes_written=_scaled(record.bytes_written, sum(outputs), sum(record.outputs)),
            duration_ns=None
            if record.duration_ns is None
            else round_half_up(Fraction(record.duration_ns, n)),
            duration_by_kind={k: round_half_up(Fraction(v, n)) for k, v in record.duration_by_kind.items()},
            attributes={
                **(self._attributes(record, makes) if share else record.attributes),
                "stream": COMPUTE,
            },
        )
        self.last = record.name
        for k, state in enumerate(states):
            tensor = record.tensor(k)
            self.state[tensor] = state
            if state == PART and tensor not in self.gradient_of and not self._added_up(tensor):
                self.reduced(tensor)

    def _size(self, source: str, makes: str, tensor: str) -> int:
        """Return the bytes that an op reads of a tensor: if it makes some tokens, of these only."""
        nbytes = self.records.nbytes(source)
        is_data = tensor not in self.old.externals or tensor not in self.plan.trained
        sliced = makes == SEQUENCE and self.of(tensor) == WHOLE and is_data
        return self.share(nbytes) if sliced else nbytes

    def _added_up(self, tensor: str) -> bool:
        """Whether parts of a sum are only read by an op that adds them to others."""
        readers = self.plan.readers.get(tensor, [])
        return bool(readers) and all(reader.kind in _SUMS and reader.phase == "B" for reader in readers)

    def _attributes(self, record: Record, makes: str) -> dict[str, object]:
        """Return the shape that a table of measurements looks up: of a rank's part."""
        found = dict(record.attributes)
        names: tuple[str, ...] = ("heads", "kv_heads") if makes == SPLIT else ()
        if record.kind in PRODUCTS:
            gradient = record.name in self.gradient_of
            if makes == SEQUENCE:
                names = ("m",)
            elif gradient and makes == PART:
                names = ("k",)
            elif gradient:
                forward = {tensor: self.old.producer(tensor) for tensor, _ in record.inputs}
                of_x = any(
                    p is not None and p.phase in (None, "F") and self.of(x) == SPLIT
                    for x, p in forward.items()
                )
                names = ("m",) if of_x else ("n",)
            else:
                names = ("k",) if makes == PART else ("n",)
        for name in names:
            if name in found:
                found[name] = -(-found[name] // self.t)
        return found

    def _finish(self, updates: Sequence[Record]) -> None:
        """Sum the gradients of which ranks have parts, in one; then write the updates."""
        read_ = dict.fromkeys(chain.from_iterable([t for t, _ in update.inputs] for update in updates))
        for tensor in read_:
            if self.of(tensor) == SEQUENCE:  # the gradient of a parameter that has a row for each token
                self.moved[tensor] = self.whole(tensor, backward=True)
        parts = [tensor for tensor in read_ if self.of(tensor) == PART]
        if parts:
            sizes = [self.old.nbytes(tensor) for tensor in parts]
            total = sum(sizes)
            name = self.collective("gradients/all_reduce", "all_reduce", parts[0], total, total, updates[0])
            record = self.records.ops[name]
            record.inputs, record.outputs = [(part, 0) for part in parts], tuple(sizes)
            record.bytes_read = sum(sizes)
            self.moved |= {part: record.tensor(k) for k, part in enumerate(parts)}
        for update in updates:
            own = dict.fromkeys(tensor for tensor, _ in update.inputs)
            weights = [each.name for each in self.parameters if each.update == update.name]
            old = sum(self.old.externals[t].nbytes for t in weights)
            new = sum(self.records.externals[t].nbytes for t in weights)
            for tensor in own:
                if tensor in self.old.externals and tensor not in weights:
                    given = self.old.externals[tensor]
                    self.records.externals[tensor] = replace(given, nbytes=_scaled(given.nbytes, new, old))
            outputs = tuple(_scaled(nbytes, new, old) for nbytes in update.outputs)
            duration = update.duration_ns
            self.records.ops[update.name] = replace(
                update,
                inputs=[(self.moved.get(tensor, tensor), d) for tensor, d in update.inputs],
                outputs=outputs,
                flops=_scaled(update.flops, new, old),
                bytes_read=_scaled(update.bytes_read, new, old),
                bytes_written=_scaled(update.bytes_written, new, old),
                duration_ns=None if duration is None else _scaled(duration, new, old),
                duration_by_kind={
                    kind: _scaled(ns, new, old) for kind, ns in update.duration_by_kind.items()
                },
                attributes={**update.attributes, "stream": COMPUTE},
            )


def _scaled(value: int, new: int, old: int) -> int:
    return round_half_up(Fraction(value * new, old)) if old else value
