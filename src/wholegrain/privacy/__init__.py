"""The privacy core: units, events, accountants, calibration. It never imports torch and never reads data."""
