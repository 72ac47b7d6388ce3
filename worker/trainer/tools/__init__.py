"""What jobs and commands run in a child: inspect, convert, probe, samples."""
