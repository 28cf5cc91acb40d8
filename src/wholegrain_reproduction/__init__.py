"""The evaluation of the paper [Marathe], run again with the library: an application of wholegrain, not a part of it.

`recipes` reads an experiment, `trials` lists its runs, `run_trials` trains them, `subject_epsilon` computes their true
ε, `results` reads what was measured, `claims` judges the paper's text, `paper_figures` and `results_page` show it.
`experiment` is all of these in one call, `command` its command line. Nothing in `wholegrain` imports this package.
"""
