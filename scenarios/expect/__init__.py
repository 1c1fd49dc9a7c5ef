"""What has to come out of a run: ``expect:`` of a scenario, read into conditions and held against results."""
