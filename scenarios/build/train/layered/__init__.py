"""Steps that are written layer by layer, because parameters are gathered for each."""
