"""What like runs were measured to take, for the guard: at submission, and at a claim."""

from dataclasses import replace

from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts, UnknownFact
from app.guard.memory.profile_key import profile_key
from app.planning.profile import ProfileKey
from app.spec.run import RunSpec
from app.store.telemetry.memory_profiles import MemoryProfiles


def with_profiles(profiles: MemoryProfiles, spec: RunSpec, facts: Facts) -> Facts:
    """The facts, with the profiles of a spec on each device that it could get."""
    case = Case(spec, facts)
    keys = keys_of(case)
    if spec.runtime.activation_checkpointing:  # a rule asks what it would take without
        keys |= keys_of(case.with_values({"/runtime/activation_checkpointing": False}))
    return replace(facts, profiles=profiles.of(keys))


def keys_of(case: Case) -> set[ProfileKey]:
    """One for each device, and for the CPU beside a GPU; none while its data is not known."""
    devices = case.facts.devices
    on_host = [DeviceFacts("cpu", "cpu", host=device.host) for device in devices]
    found = set()
    for device in (*devices, *on_host):
        try:
            found.add(profile_key(case.workload, device))
        except UnknownFact:
            continue
    return found
