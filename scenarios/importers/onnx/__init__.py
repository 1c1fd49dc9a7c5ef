"""ONNX models: ops, shapes, control flow, batch."""
