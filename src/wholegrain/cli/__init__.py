"""The command line: one file per verb. All terminal code lives here."""
