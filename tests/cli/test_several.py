"""Verbs that take several ids: a line for each run, and the exit code of the worst."""


def test_verbs_take_several_runs(cli, api, spec_file):
    ids = [str(cli("submit", str(spec_file), "--json").document["id"]) for _ in range(2)]
    assert cli("pause", *ids).out == "".join(f"Run {run_id} is paused.\n" for run_id in ids)
    again = cli("pause", ids[0], "999999", ids[1], ids[0])
    assert again.code == 5, "as the worst of them"
    assert again.out == "".join(f"Run {run_id} is already paused.\n" for run_id in ids)
    assert "error: There is no run 999999" in again.err
    resumed = cli("resume", "999999", *ids, "--json")
    assert resumed.code == 5
    told = [(one["id"], one["exit_code"]) for one in resumed.document["results"]]
    assert told == [(999999, 5), (int(ids[0]), 0), (int(ids[1]), 0)]
    assert resumed.document["results"][0]["problem"]["code"] == "not_found"
    assert resumed.document["results"][1]["answer"]["state"] == "queued"
    edited = cli("edit", *ids, "--priority", "3")
    assert edited.out.count("now has the priority 3") == 2
    stopped = cli("stop", *ids, "--wait", "5")
    assert stopped.out == "".join(f"Run {run_id} has stopped.\n" for run_id in ids)
    restarted = cli("restart", *ids, "--from", "scratch")
    assert (restarted.code, restarted.out.count("starts anew as run")) == (0, 2)
    assert cli("restart", *ids, "--watch").code == 2
    assert cli("delete", *ids).code == 5, "nobody can be asked"
    assert cli("delete", *ids, "--yes").out.count("is deleted") == 2
