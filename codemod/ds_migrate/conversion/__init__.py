"""The conversion of one group of trials: rules applied, output checked, work spread over processes."""
