"""Optimizer step: engine, train state, schedules, loss scale, spike detection."""
