"""`gatdiag inspect`, `rebalance` and `compare` on files, as one calls them."""

import copy
import json
import math
import pickle
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch_geometric.nn import GCN
from typer.testing import CliRunner

import gatdiag
from gatdiag.checkpoint import inspect, layer_table, open_all
from gatdiag.cli.app import app
from gatdiag.experiments.data import load_graph
from gatdiag.experiments.models import gat
from gatdiag.remedies.moments import POWERS
from gatdiag.run.files import META
from tests.checkpoint.saved import count_opens
from tests.checkpoint.test_torch_file import Runs
from tests.page.builder import Reader

FACTORY = "tests.cli.test_checkpoints:network"
LAYERS = 5


def network(in_channels, out_channels):
    return gat(in_channels, out_channels, hidden_channels=16, layers=LAYERS)


NAMES = [name for name, _ in network(64, 4).named_parameters()]


def run(*arguments, width=200):
    if arguments[0] == "rebalance" and "--model" not in arguments:
        arguments = (*arguments, "--model", FACTORY)
    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def graph():
    return load_graph("sbm")


@pytest.fixture(scope="module")
def saved(graph, tmp_path_factory):
    """A folder with three checkpoints of a network in training."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = network(graph.num_features, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for step in range(5):
        if step % 2 == 0:
            states = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
            torch.save({"epoch": step, "note": "kept", **states}, folder / f"epoch{step}.pt")
        optimizer.zero_grad()
        F.cross_entropy(model(graph.x, graph.edge_index), graph.y).backward()
        optimizer.step()
    return folder


@pytest.fixture(scope="module")
def runs(saved, tmp_path_factory):
    """The runs made of the first and the last checkpoint, without a page."""
    folder = tmp_path_factory.mktemp("runs")
    return [inspect(open_all(saved / name), folder / name).run.folder for name in ("epoch0.pt", "epoch4.pt")]


def outputs(path, graph):
    return of_weights(torch.load(path, weights_only=True)["model_state_dict"], graph)


def largest_imbalance(weights):
    """The largest |c| of a hidden neuron, ||row of W||^2 - a^2 - ||column of the next W||^2, and |c| over their sum."""
    found = []
    for layer in range(LAYERS - 1):
        w, a, following = (
            weights[f"convs.{name}"].double()
            for name in (f"{layer}.lin_l.weight", f"{layer}.att", f"{layer + 1}.lin_l.weight")
        )
        for neuron in range(len(w)):
            incoming = sum(value**2 for value in w[neuron].tolist())
            outgoing = a.flatten()[neuron].item() ** 2 + sum(value**2 for value in following[:, neuron].tolist())
            found.append((abs(incoming - outgoing), abs(incoming - outgoing) / (incoming + outgoing)))
    return [max(column) for column in zip(*found, strict=True)]


def of_weights(weights, graph):
    model = network(graph.num_features, 4).double()
    model.load_state_dict(weights)
    return model(graph.x.double(), graph.edge_index)


class TestInspect:
    def test_the_table_has_a_line_for_each_layer(self, saved):
        done = run("inspect", saved)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.startswith("3 checkpoints from step 0 to 4")
        assert [line.split()[0] for line in done.stdout.splitlines() if "GATv2Conv" in line] == [
            f"convs.{number}" for number in range(LAYERS)
        ]
        assert "Checkpoints hold no learning curve" in done.stdout
        assert "No problem found" not in done.stdout
        assert "causes; the page of --out says why not the others" in " ".join(done.stdout.split())

    def test_the_run_can_be_read_and_reported(self, saved, tmp_path, few_figures):
        done = run("inspect", saved, "--model", FACTORY, "--data", "sbm", "--out", tmp_path / "out")
        assert done.exit_code == 0, done.stderr
        assert gatdiag.load(tmp_path / "out" / "run").steps.step.tolist() == [0, 2, 4]
        assert "<html" in (tmp_path / "out" / "report.html").read_text()
        assert (tmp_path / "out" / "figures" / "unchanged_fraction.png").stat().st_size > 10_000
        again = run("inspect", saved, "--out", tmp_path / "out")
        assert again.exit_code == 0, again.stderr
        assert f"writing to {tmp_path / 'out-2'}" in again.stderr
        assert gatdiag.load(tmp_path / "out-2" / "run").steps.step.tolist() == [0, 2, 4]
        assert run("inspect", saved, "--out", tmp_path / "out", "--overwrite").exit_code == 0

    def test_what_checkpoints_do_not_show_is_said_and_would_rank_above(self, graph, saved, tmp_path):
        torch.manual_seed(0)
        torch.save(network(graph.num_features, 4).state_dict(), tmp_path / "fresh.pt")
        for arguments in ([], ["--model", FACTORY, "--data", "sbm"]):
            done = run("inspect", tmp_path / "fresh.pt", *arguments)
            assert "not looked at: neurons are out of balance from the start, which would rank above" in done.stdout

    def test_status_tells_how_bad_it_is(self, saved, tmp_path):
        state = torch.load(saved / "epoch4.pt", weights_only=True)["model_state_dict"]
        state["convs.3.att"][0, 0, 0] = math.inf
        torch.save(state, tmp_path / "broken.pt")
        done = run("inspect", tmp_path / "broken.pt")
        assert done.exit_code == 1
        assert "[non-finite]" in done.stdout
        assert run("inspect", tmp_path / "broken.pt", "--fail-on", "never").exit_code == 0
        assert run("inspect", saved, "--fail-on", "note").exit_code == 0

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["nowhere.pt"], "nowhere.pt"),
            (["*.nothing"], "nothing matches"),
            (["README.md"], "README.md"),
            (["FILE", "--data", "sbm"], "--model"),
            (["FILE", "--model", "json:dumps"], "json:dumps"),
            (["FILE", "--model", "gatdiag.experiments.models:gcn"], "no tensor of the same name"),
            (["FILE", "--fail-on", "sometimes"], "sometimes"),
            (["FILE", "--out", "README.md"], "expected a folder, got the file"),
        ],
    )
    def test_bad_input_is_told_in_one_line(self, saved, tmp_path, arguments, says):
        (tmp_path / "README.md").write_text("no checkpoint")
        places = {"FILE": saved / "epoch4.pt", "README.md": tmp_path / "README.md"}
        done = run("inspect", *(places.get(argument, argument) for argument in arguments))
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert says in done.stderr

    def test_names_are_not_obeyed(self, tmp_path):
        torch.save({"\x1b[31mred.<b>.weight": torch.eye(3), "conv.weight": torch.eye(3)}, tmp_path / "x.pt")
        done = run("inspect", tmp_path / "x.pt", "--out", tmp_path / "out")
        assert done.exit_code == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\\x1b[31mred" in done.stdout
        assert "<b>.weight" not in (tmp_path / "out" / "report.html").read_text()

    def test_thousands_of_layers_are_not_printed(self, tmp_path):
        torch.save({f"l{number}.weight": torch.eye(2) for number in range(200)}, tmp_path / "x.pt")
        done = run("inspect", tmp_path / "x.pt")
        assert sum("Linear" in line for line in done.stdout.splitlines()) == 80
        assert "120 layers after l39 are not shown" in done.stdout
        assert "l199" in done.stdout

    @pytest.mark.parametrize(
        "tensors",
        [
            {f"acts.{number}.weight": torch.ones(1) for number in range(100)},
            {f"lin.{number}.weight": torch.tensor(1.0) for number in range(100)},
            {f"w{number}": torch.ones(3) for number in range(100)},
            {"lin\udc80.weight": torch.eye(3), "lin\udc80.bias": torch.ones(3)},
        ],
        ids=["activations", "scalars", "vectors", "surrogates"],
    )
    def test_files_of_odd_tensors_are_read(self, tmp_path, tensors, few_figures):
        torch.save(tensors, tmp_path / "x.pt")
        for arguments in (["inspect", "--out", tmp_path / "out"], ["diagnose"], ["compare", tmp_path / "x.pt"]):
            done = run(*arguments, tmp_path / "x.pt")
            assert (done.exit_code, done.stderr) == (3 * (arguments == ["diagnose"]), "")
        assert len(gatdiag.load(tmp_path / "out" / "run").parameter_names) == len(tensors)


class TestFiles:
    @pytest.mark.parametrize("command", ["inspect", "diagnose", "compare", "rebalance"])
    def test_hostile_files_are_refused_in_one_line_and_nothing_is_executed(self, tmp_path, command):
        marker = tmp_path / "ran"
        write_hostile(tmp_path / "files", marker)
        for path in sorted((tmp_path / "files").iterdir()):
            done = run(command, path, *[tmp_path / "out"] * (command in ("compare", "rebalance")))
            assert (done.exit_code, done.stdout) == (2, ""), path.name
            (line,) = done.stderr.splitlines()
            assert line.startswith(f"gatdiag: Cannot read '{path}': "), line
            assert "internal error" not in line
            assert "torch.save(model.state_dict(), FILE)" in line
            assert not marker.exists()

    def test_a_file_whose_name_is_not_utf_8_is_to_be_renamed(self, tmp_path):
        path = tmp_path / "na\udcffme.pt"
        torch.save({"weight": torch.ones(2, 2)}, (tmp_path / "name.pt"))
        (tmp_path / "name.pt").rename(path)
        done = run("inspect", path)
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert "its name is not valid UTF-8" in line
        assert line.endswith("rename it")

    @pytest.mark.parametrize("with_model", [False, True])
    def test_each_file_is_opened_once(self, saved, monkeypatch, with_model):
        opens = count_opens(monkeypatch)
        done = run("inspect", saved, *["--model", FACTORY, "--data", "sbm"] * with_model)
        assert done.exit_code == 0, done.stderr
        assert opens == {str(saved / f"epoch{step}.pt"): 1 for step in (0, 2, 4)}

    @pytest.mark.parametrize("command", ["compare", "diagnose"])
    def test_each_file_is_opened_once_by_other_commands(self, saved, monkeypatch, command):
        files = [saved / "epoch0.pt", saved / "epoch4.pt"]
        opens = count_opens(monkeypatch)
        assert run(command, *files).exit_code == 3 * (command == "diagnose")
        assert opens == {str(path): 1 for path in files}

    @pytest.mark.parametrize("given", [[], ["--model", FACTORY], ["--model", FACTORY, "--data", "sbm"]])
    def test_terminal_page_and_json_name_the_same_findings(self, saved, tmp_path, given):
        content = torch.load(saved / "epoch4.pt", weights_only=True)
        for side in ("lin_l", "lin_r"):  # shared
            content["model_state_dict"][f"convs.1.{side}.weight"][:3] = 0
        content["optimizer_state_dict"]["state"][NAMES.index("convs.2.att")]["exp_avg_sq"].zero_()
        content["model_state_dict"] = {f"module.{name}": t for name, t in content["model_state_dict"].items()}
        torch.save(content, tmp_path / "x.pt")
        done = run("inspect", tmp_path / "x.pt", "--out", tmp_path / "out", *given)
        assert done.exit_code == 0, done.stderr
        told = run("diagnose", tmp_path / "out" / "run", "--json")
        findings = json.loads(told.stdout)["diagnoses"][0]["findings"]
        assert {"dead-weights", "parameters-without-gradient"} <= {finding["code"] for finding in findings}
        terminal = " ".join(done.stdout.split())
        page = Reader((tmp_path / "out" / "report.html").read_text()).words
        for finding in findings:
            assert f"[{finding['code']}]" in terminal
            assert finding["text"] in terminal
            assert finding["text"] in page
        assert len(re.findall(r" \[[a-z-]+\]\n", done.stdout)) == len(findings)
        assert "No problem found" not in terminal + page
        if not given:
            of_file = json.loads(run("diagnose", tmp_path / "x.pt", "--json").stdout)["diagnoses"][0]
            assert of_file["findings"] == findings


def write_hostile(folder, marker):
    """Files that would run a command, are damaged, or are no checkpoints."""
    folder.mkdir()
    torch.save({"weight": Runs(f"touch {marker}")}, folder / "os.system.pt")
    torch.save({"weight": Runs(f"touch {marker}")}, folder / "old.pt", _use_new_zipfile_serialization=False)
    (folder / "bare.pt").write_bytes(pickle.dumps(Runs(f"touch {marker}")))
    torch.save({"weight": torch.ones(1000)}, folder / "truncated.pt")
    (folder / "truncated.pt").write_bytes((folder / "truncated.pt").read_bytes()[:-2000])
    (folder / "random.pt").write_bytes(random.Random(0).randbytes(1000))
    (folder / "empty.pt").write_bytes(b"")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 16]}}).encode()
    (folder / "lies.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))


class TestRebalance:
    def test_the_function_stays_and_c_is_zero(self, saved, graph, tmp_path):
        done = run("rebalance", saved / "epoch4.pt", tmp_path / "out.pt")
        assert done.exit_code == 0, done.stderr
        torch.testing.assert_close(
            outputs(tmp_path / "out.pt", graph), outputs(saved / "epoch4.pt", graph), rtol=1e-5, atol=1e-6
        )
        layers = layer_table(inspect(open_all(tmp_path / "out.pt"), tmp_path / "inspected"))
        assert layers.c[:-1].max() < 1e-6
        assert "largest difference of outputs in float64" in done.stdout

    @pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
    def test_c_and_the_outputs_are_those_of_the_file(self, saved, graph, tmp_path, dtype, suffix):
        state = torch.load(saved / "epoch4.pt", weights_only=True)["model_state_dict"]
        before = {name: tensor.to(dtype, copy=True) for name, tensor in state.items()}
        write, read = (torch.save, torch.load) if suffix == ".pt" else (save_file, load_file)
        write(before, tmp_path / f"in{suffix}")
        done = run("rebalance", tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", "--data", "sbm")
        assert done.exit_code == 0, done.stderr
        after = read(tmp_path / f"out{suffix}")
        old, new = (largest_imbalance(weights) for weights in (before, after))
        numbers = r"([\d.e+-]+) before, ([\d.e+-]+) after"
        printed = [
            *map(float, re.search(rf"largest \|c\| {numbers}; largest imbalance {numbers}", done.stdout).groups())
        ]
        rounding = {"rel": 0.06, "abs": 1e-14 if dtype is torch.float64 else 0.0}
        assert printed == pytest.approx([old[0], new[0], old[1], new[1]], **rounding)
        one, other = of_weights(before, graph), of_weights(after, graph)
        apart = (one - other).abs().max().item()
        absolute, relative = re.search(r"in float64: ([\d.e+-]+), relative ([\d.e+-]+)\n", done.stdout).groups()
        assert float(absolute) == pytest.approx(apart, **rounding)
        assert float(relative) == pytest.approx(apart / one.abs().max().item(), **rounding)
        limits = re.search(r"rounding to (\w+), .*\|c\| would be ([\d.e+-]+).* differ by ([\d.e+-]+)", done.stdout)
        assert (limits is None) == (dtype is torch.float64)
        if limits is not None:
            assert limits[1] == str(dtype).removeprefix("torch.")
            assert max(float(limits[2]), float(limits[3])) < 1e-12

    def test_a_file_is_its_own_target_if_asked(self, saved, tmp_path):
        path = shutil.copy(saved / "epoch4.pt", tmp_path / "in.pt")
        done = run("rebalance", path, path)
        assert done.exit_code == 2
        assert "write it with in_place=True (--in-place instead of a name)" in done.stderr
        assert run("rebalance", path, "--in-place").exit_code == 0

    def test_moments_are_rounded_once(self, graph, tmp_path):
        content = self.content(graph, torch.optim.Adam)
        for state in content["optimizer"]["state"].values():
            state |= {key: value.bfloat16() for key, value in state.items() if key.startswith("exp")}
        torch.save(content, tmp_path / "in.pt")
        assert run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt").exit_code == 0
        after = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]["state"]
        model = network(graph.num_features, 4)
        model.load_state_dict(content["model"])
        scales = gatdiag.remedies.rebalance_(model, graph.x, graph.edge_index).scales
        for index, name in enumerate(NAMES):
            for moment, power in (("exp_avg", 1), ("exp_avg_sq", 2)):
                exact = content["optimizer"]["state"][index][moment].double() / scales.get(name, torch.ones(1)) ** power
                assert torch.equal(after[index][moment], exact.bfloat16())

    def test_moments_that_would_overflow_are_not_written(self, graph, tmp_path):
        content = self.content(graph, torch.optim.Adam)
        for state in content["optimizer"]["state"].values():
            state |= {
                key: torch.full_like(value, 6e4, dtype=torch.half) for key, value in state.items() if key != "step"
            }
        torch.save(content, tmp_path / "in.pt")
        done = run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt")
        assert done.exit_code == 2
        assert "too large for torch.float16" in done.stderr
        assert "--moments drop" in done.stderr
        assert not (tmp_path / "out.pt").exists()
        assert run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt", "--moments", "drop").exit_code == 0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_shared_weights_that_are_saved_as_copies_stay_alike(self, saved, graph, tmp_path, dtype):
        state = torch.load(saved / "epoch4.pt", weights_only=True)["model_state_dict"]
        before = {name: tensor.to(dtype, copy=True) for name, tensor in state.items()}
        torch.save(before, tmp_path / "in.pt")
        save_file(before, tmp_path / "in.safetensors")
        for suffix, read in ((".pt", torch.load), (".safetensors", load_file)):
            done = run("rebalance", tmp_path / f"in{suffix}", tmp_path / f"out{suffix}")
            assert done.exit_code == 0, done.stderr
            after = read(tmp_path / f"out{suffix}")
            assert not torch.equal(after["convs.1.lin_r.weight"], before["convs.1.lin_r.weight"])
            for number in range(LAYERS):
                assert torch.equal(after[f"convs.{number}.lin_r.weight"], after[f"convs.{number}.lin_l.weight"])
            if dtype is torch.float32:
                torch.testing.assert_close(of_weights(after, graph), of_weights(before, graph), rtol=1e-5, atol=1e-6)

    def test_weights_in_double_precision_keep_their_digits(self, saved, graph, tmp_path):
        state = torch.load(saved / "epoch4.pt", weights_only=True)["model_state_dict"]
        generator = torch.Generator().manual_seed(0)
        before = {
            f"{part}.{name}": tensor.double() * (1 + 1e-9 * torch.randn(tensor.shape, generator=generator))
            for part in ("generator", "discriminator")
            for name, tensor in state.items()
        }
        torch.save(before, tmp_path / "in.pt")
        done = run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt")
        assert done.exit_code == 0, done.stderr
        assert "(not used): 'discriminator.convs.0." in done.stdout
        after = torch.load(tmp_path / "out.pt")
        assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("discriminator."))
        model = network(graph.num_features, 4).double()
        outputs = []
        for states in (before, after):
            own = {n.removeprefix("generator."): t for n, t in states.items() if n.startswith("generator.")}
            model.load_state_dict(own)
            outputs.append(model(graph.x.double(), graph.edge_index))
        torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(("source", "target"), [("in.pt", "out.safetensors"), ("in.safetensors", "out.pt")])
    def test_a_name_of_the_other_format_is_refused(self, saved, tmp_path, source, target):
        state = torch.load(saved / "epoch4.pt", weights_only=True)["model_state_dict"]
        torch.save(state, tmp_path / "in.pt")
        save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "in.safetensors")
        done = run("rebalance", tmp_path / source, tmp_path / target)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
        assert "needs the same ending" in done.stderr
        assert not (tmp_path / target).exists()

    def test_weights_that_are_not_finite_are_refused(self, saved, tmp_path):
        state = torch.load(saved / "epoch4.pt", weights_only=True)["model_state_dict"]
        torch.save({name: torch.full_like(tensor, math.nan) for name, tensor in state.items()}, tmp_path / "in.pt")
        done = run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt")
        assert done.exit_code == 2
        assert "got NaN or infinities in 'convs.0.lin_l.weight'" in done.stderr
        assert not (tmp_path / "out.pt").exists()

    def test_all_else_is_carried_over_and_moments_follow(self, saved, tmp_path):
        before = torch.load(saved / "epoch4.pt", weights_only=True)
        assert run("rebalance", saved / "epoch4.pt", tmp_path / "out.pt").exit_code == 0
        after = torch.load(tmp_path / "out.pt", weights_only=True)
        assert (after["epoch"], after["note"]) == (4, "kept")
        states = [content["optimizer_state_dict"]["state"] for content in (before, after)]
        for index, name in enumerate(NAMES):
            old, new = (content["model_state_dict"][name].double() for content in (before, after))
            factor = new / old
            known = factor.isfinite()
            for moment, power in (("exp_avg", 1), ("exp_avg_sq", 2)):
                a, b = (state[index][moment].double() for state in states)
                torch.testing.assert_close(b[known], (a / factor**power)[known], rtol=1e-4, atol=1e-12)
            assert states[0][index]["step"] == states[1][index]["step"]

    def test_moments_can_be_dropped(self, saved, tmp_path):
        assert run("rebalance", saved / "epoch4.pt", tmp_path / "out.pt", "--moments", "drop").exit_code == 0
        assert torch.load(tmp_path / "out.pt", weights_only=True)["optimizer_state_dict"]["state"] == {}

    def test_the_source_is_only_replaced_when_told(self, saved, tmp_path):
        source = tmp_path / "x.pt"
        source.write_bytes((saved / "epoch4.pt").read_bytes())
        done = run("rebalance", source, source)
        assert done.exit_code == 2
        assert source.read_bytes() == (saved / "epoch4.pt").read_bytes()
        assert run("rebalance", source).exit_code == 2
        assert run("rebalance", source, "--in-place").exit_code == 0
        assert source.read_bytes() != (saved / "epoch4.pt").read_bytes()

    def test_another_file_is_only_replaced_when_told(self, saved, tmp_path):
        (tmp_path / "out.pt").write_bytes(b"mine")
        done = run("rebalance", saved / "epoch4.pt", tmp_path / "out.pt")
        assert done.exit_code == 2
        assert "exists: choose another name, or replace it with --overwrite" in done.stderr
        assert (tmp_path / "out.pt").read_bytes() == b"mine"
        assert run("rebalance", saved / "epoch4.pt", tmp_path / "out.pt", "--overwrite").exit_code == 0
        assert (tmp_path / "out.pt").read_bytes() != b"mine"

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["IN", "OUT", "--moments", "keep"], "keep"),
            (["IN", "missing/out.pt"], "missing"),
            (["nowhere.pt", "OUT"], "nowhere.pt"),
        ],
    )
    def test_bad_input_is_told_in_one_line(self, saved, tmp_path, arguments, says):
        places = {"IN": saved / "epoch4.pt", "OUT": tmp_path / "out.pt", "missing/out.pt": tmp_path / "missing/out.pt"}
        done = run("rebalance", *(places.get(argument, argument) for argument in arguments))
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert says in done.stderr
        assert not (tmp_path / "out.pt").exists()

    @pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RMSprop])
    def test_moments_of_other_optimizers_follow(self, graph, tmp_path, kind):
        content = self.content(graph, kind)
        torch.save(content, tmp_path / "in.pt")
        assert run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt").exit_code == 0
        after = torch.load(tmp_path / "out.pt", weights_only=True)
        powers = POWERS[kind]
        for index, name in enumerate(NAMES):
            old, new = (of["optimizer"]["state"][index] for of in (content, after))
            factor = after["model"][name].double() / content["model"][name].double()
            known = factor.isfinite()
            for key in powers.keys() & old.keys():
                if isinstance(old[key], torch.Tensor):
                    expected = old[key].double() * factor ** powers[key]
                    torch.testing.assert_close(new[key].double()[known], expected[known], rtol=1e-4, atol=1e-12)

    def test_moments_that_cannot_follow_are_not_left_behind(self, graph, tmp_path):
        unknown = self.content(graph, torch.optim.Adafactor)
        unmatched = self.content(graph, torch.optim.Adam)
        for state in unmatched["optimizer"]["state"].values():
            state["exp_avg"] = torch.ones(5, 7)
        for content in (unknown, unmatched):
            torch.save(content, tmp_path / "in.pt")
            done = run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt")
            assert done.exit_code == 2
            assert "--moments drop" in done.stderr
            assert run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt", "--moments", "drop").exit_code == 0
            (tmp_path / "out.pt").unlink()

    def test_moments_of_several_optimizers_are_not_left_behind(self, graph, tmp_path):
        content = self.content(graph, torch.optim.Adam)
        content["optimizer_states"] = [content["optimizer"], copy.deepcopy(content.pop("optimizer"))]
        torch.save(content, tmp_path / "in.pt")
        done = run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt")
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert "--moments drop" in done.stderr
        assert not (tmp_path / "out.pt").exists()
        assert run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt", "--moments", "drop").exit_code == 0
        after = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer_states"]
        assert [optimizer["state"] for optimizer in after] == [{}, {}]

    def content(self, graph, kind):
        torch.manual_seed(0)
        model = network(graph.num_features, 4)
        optimizer = kind(model.parameters())
        F.cross_entropy(model(graph.x, graph.edge_index), graph.y).backward()
        optimizer.step()
        return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    def test_a_model_without_laws_is_said_to_have_none(self, tmp_path, monkeypatch):
        (tmp_path / "without_laws.py").write_text(
            "from torch_geometric.nn import GCN\n"
            "def make(in_channels, out_channels): return GCN(in_channels, 8, 2, out_channels, act='elu')\n"
        )
        monkeypatch.chdir(tmp_path)
        torch.save(GCN(6, 8, 2, 3).state_dict(), tmp_path / "in.pt")
        done = run("rebalance", tmp_path / "in.pt", tmp_path / "out.pt", "--model", "without_laws:make")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "No law could be balanced, and nothing was written: " in done.stderr
        assert not (tmp_path / "out.pt").exists()


class TestCompare:
    def test_two_models(self, saved, tmp_path):
        torch.save({"other.weight": torch.eye(3)}, tmp_path / "x.pt")
        done = run("compare", saved / "epoch0.pt", tmp_path / "x.pt")
        assert done.exit_code == 0, done.stderr
        assert "no layer in common" in done.stdout
        assert "has the layers other" in done.stdout

    def test_two_checkpoints(self, saved):
        done = run("compare", saved / "epoch0.pt", saved / "epoch4.pt", "--most", "0")
        assert done.exit_code == 0, done.stderr
        changed = {line.split()[0] for line in done.stdout.splitlines() if "changed by more than 5%" in line}
        assert {name for name in NAMES if "lin_l" in name} <= changed <= {*NAMES}

    def test_settings_that_nobody_chose_are_not_listed(self, saved, runs, tmp_path):
        meta = Path(shutil.copytree(runs[1], tmp_path / "run")) / META
        group = {"parameters": [], "lr": 0.1, "fused": None, "foreach": None}
        optimizer = {"class": "SGD", "groups": [group]}
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"optimizers": [optimizer], "dtype": "float32"}))
        done = run("compare", saved / "epoch0.pt", tmp_path / "run")
        assert done.exit_code == 0, done.stderr
        assert "optimizer 0, group 0: lr: none | 0.1" in done.stdout
        assert "fused" not in done.stdout
        assert "None" not in done.stdout

    def test_the_outcome_of_trainings_comes_first_then_settings_then_layers(self, graph, tmp_path):
        for name, rate, decay in (("slow", 1e-4, 0), ("fast", 0.5, 0.0)):
            torch.manual_seed(0)
            model = gat(graph.num_features, 4, hidden_channels=8, layers=5)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
            with gatdiag.watch(model, tmp_path / name) as recorder:
                for step in range(3):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(graph.x, graph.edge_index), graph.y)
                    loss.backward()
                    optimizer.step()
                    recorder.log(loss=loss, val_accuracy=step / 10)
        done = run("compare", tmp_path / "slow", tmp_path / "fast")
        assert done.exit_code == 0, done.stderr
        places = [
            done.stdout.index(text) for text in ("validation accuracy", "first loss", "lr: ", "update-to-weight ratio")
        ]
        assert places == sorted(places)
        assert "weight_decay" not in done.stdout
        rows = [line.split() for line in done.stdout.splitlines()]
        assert ["validation", "accuracy", "0.2", "0.2"] in rows
        assert sum("update-to-weight" in row for row in rows) <= 4  # of feature weights and of attention
        table = rows[next(at for at, row in enumerate(rows) if row[:1] == ["layer"]) + 2 :]
        shown = [row for row in table if row and row[0].startswith("convs.")]
        assert len(shown) == 10
        ratio = next(row for row in shown if row[:2] == ["convs.0", "update-to-weight"])
        assert (ratio[-2], round(float(ratio[-1].replace(",", "")), -3)) == (
            "\N{MULTIPLICATION SIGN}",
            5000,
        )  # the rate
        assert "whole network" not in done.stdout
        everything = run("compare", tmp_path / "slow", tmp_path / "fast", "--most", "0").stdout
        assert everything.count("update-to-weight") > done.stdout.count("update-to-weight")

    def test_what_is_neither(self, tmp_path):
        done = run("compare", tmp_path / "a", tmp_path / "b")
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert "Expected a run or a checkpoint" in done.stderr
