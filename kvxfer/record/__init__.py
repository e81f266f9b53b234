"""What happened to each transfer: steps, the flight recorder, recordings, phases.

Public names of the room. It knows the core's names and nothing above them.
"""

from kvxfer.record.flight import FlightRecorder
from kvxfer.record.lines import AgentTrack, BadRecording, Recording, read_recordings
from kvxfer.record.steps import Step
from kvxfer.record.tap import Sink, Tap
from kvxfer.record.transcript import transcript

__all__ = [
    "AgentTrack",
    "BadRecording",
    "FlightRecorder",
    "Recording",
    "Sink",
    "Step",
    "Tap",
    "read_recordings",
    "transcript",
]
