"""Records of runs for tests of reports."""

from dataclasses import replace

from wholegrain.report.run_reader import RunRecord


def secure(run: RunRecord) -> RunRecord:
    """The record that the same run would have left as a release."""
    privacy = run.spec.privacy.model_copy(update={"noise": "secure"})
    spent = tuple(replace(each, simulation=False) for each in run.spent)
    return replace(run, spent=spent, spec=run.spec.model_copy(update={"privacy": privacy}))
