//! An interrupted run is resumed with --resume, and its output has the bytes of an uninterrupted run.

use crate::support;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{assert_fails, fixture, sconce, stderr};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

/// Number of records of a run that saves its manifest several times: it does so every 200 ms at most.
const MANY: usize = 40_000;

const FORMATS: [&str; 6] = ["jsonl", "csv", "npy", "parquet", "arrow", "safetensors"];

/// The fields of a summary in which two runs of the same command differ.
const MEASURED: [&str; 10] = [
    "repeated",
    "rows_resumed",
    "seconds",
    "seconds_resumed",
    "seconds_loading",
    "seconds_encoding",
    "rows_per_second",
    "tokens_per_second",
    "idle",
    "peak_memory_bytes",
];

/// A folder with `texts.jsonl`, in which some texts are too long and some records are unreadable.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new(records: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = String::new();
        for i in 0..records {
            match i % 97 {
                31 => text += "{\"text\": 7}\n",
                57 => {
                    text += &format!(
                        "{{\"text\": {:?}, \"id\": \"long {i}\", \"year\": null}}\n",
                        "lamp ".repeat(60)
                    )
                }
                n => {
                    let words = "the wick ".repeat(n % 5);
                    text +=
                        &format!("{{\"text\": \"{words}burns {i}\", \"id\": {i}, \"year\": {}}}\n", 1900 + n);
                }
            }
        }
        fs::write(folder.path().join("texts.jsonl"), text).unwrap();
        Fixture { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, output: &str, args: &[&str]) -> Command {
        let mut command = sconce();
        command
            .env("SCONCE_MODEL", fixture("bert-tiny"))
            .arg("embed")
            .arg("-i")
            .arg(self.path("texts.jsonl"));
        command
            .arg("-o")
            .arg(self.path(output))
            .args(["--on-error", "skip", "--batch-tokens", "256"])
            .args(args);
        if output.rsplit('.').next().is_some_and(|suffix| suffix != "npy" && suffix != "safetensors") {
            command.args(["--keep", "year"]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn run(&self, output: &str, args: &[&str]) -> Output {
        self.command(output, args).output().unwrap()
    }

    /// Removes `stats.json` and returns its fields.
    fn take_summary(&self) -> serde_json::Map<String, serde_json::Value> {
        let stats = fs::read(self.path("stats.json")).unwrap();
        fs::remove_file(self.path("stats.json")).unwrap();
        serde_json::from_slice(&stats).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(self.folder.path()).unwrap().map(name).collect();
        names.sort();
        names
    }

    /// Starts a run, kills it as soon as it has saved its manifest, and returns that.
    fn interrupted(&self, output: &str, args: &[&str]) -> serde_json::Value {
        let mut child = self.command(output, args).spawn().unwrap();
        let manifest = self.path(&format!(".{output}.partial.json"));
        wait_for(&manifest, &mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap()
    }
}

fn wait_for(file: &Path, child: &mut Child) {
    while !file.exists() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before {} existed", file.display());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the manifest has changed, or the run has ended.
fn wait_for_save(manifest: &Path, before: Option<&[u8]>, child: &mut Child) {
    let has_saved = || fs::read(manifest).is_ok_and(|now| Some(&now[..]) != before);
    while !has_saved() && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A command that another program executes, which sets what the command does on signals.
fn started_by(program: &str, args: &[&str], command: &Command) -> Command {
    let mut starter = Command::new(program);
    starter.args(args).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    starter.stdout(Stdio::null()).stderr(Stdio::piped());
    starter
}

/// The number of rows in `resuming after … rows`.
fn resumed_rows(message: &str) -> Option<u64> {
    let rest = message.split("resuming after ").nth(1)?;
    rest.split(' ').next()?.replace(',', "").parse().ok()
}

/// One format of each kind: rows as text, rows of a fixed size below a header, and batches of rows before a
/// footer.
#[test]
fn a_run_that_is_killed_twenty_times_is_resumed() {
    kill_each_twenty_times(["jsonl", "npy", "parquet"]);
}

#[test]
#[ignore = "every night: the formats of a kind are written alike"]
fn a_run_into_another_format_that_is_killed_twenty_times_is_resumed() {
    kill_each_twenty_times(["csv", "safetensors", "arrow"]);
}

fn kill_each_twenty_times(formats: [&str; 3]) {
    thread::scope(|scope| {
        for format in formats {
            scope.spawn(move || kill_twenty_times(format));
        }
    });
}

/// Kills come at random times, early in the run. Every fourth comes only after the run has saved rows,
/// however long that takes, so that there is progress on fast and on busy machines.
fn kill_twenty_times(format: &str) {
    let run_dir = Fixture::new(MANY);
    let (complete, killed) = (format!("uninterrupted.{format}"), format!("killed.{format}"));
    let start = Instant::now();
    assert_eq!(run_dir.run(&complete, &[]).status.code(), Some(3));
    let took = start.elapsed();
    let ledger = format!("{complete}.ledger.jsonl");
    let mut expected = vec![format!(".{complete}.done.json"), "texts.jsonl".into(), complete.clone(), ledger];
    expected.extend((format == "npy").then(|| format!("{complete}.meta.json")));
    assert_eq!(run_dir.names(), expected);
    let same = |a: &str, b: &str| {
        assert!(
            fs::read(run_dir.path(a)).unwrap() == fs::read(run_dir.path(b)).unwrap(),
            "{a} and {b} differ"
        );
    };

    let manifest = run_dir.path(&format!(".{killed}.partial.json"));
    let mut random = ChaCha8Rng::seed_from_u64(format.len() as u64);
    let mut progress = Vec::new();
    for kill in 0..20 {
        let args: &[&str] = if kill == 0 { &[] } else { &["--resume"] };
        let before = fs::read(&manifest).ok();
        let mut child = run_dir.command(&killed, args).spawn().unwrap();
        if kill % 4 == 0 {
            wait_for_save(&manifest, before.as_deref(), &mut child);
        } else {
            thread::sleep(took.mul_f64(random.random_range(0.02..0.2)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        progress.extend(resumed_rows(&message));
        // It may have been killed after it was renamed: a file with the final name is complete.
        if run_dir.path(&killed).exists() {
            same(&killed, &complete);
            break;
        }
    }
    let last = run_dir.run(&killed, &["--resume"]);
    assert_eq!(last.status.code(), Some(3), "{format}: {}", stderr(&last));
    progress.extend(resumed_rows(&stderr(&last)));
    assert!(progress.is_sorted() && progress.last() > Some(&0), "{format}: {progress:?}");
    same(&killed, &complete);
    same(&format!("{killed}.ledger.jsonl"), &format!("{complete}.ledger.jsonl"));
    same(&format!("{killed}.ledger.jsonl"), &format!("{complete}.ledger.jsonl"));
    assert_eq!(run_dir.names().len(), 2 * expected.len() - 1, "{:?}", run_dir.names());
}

/// SIGINT and SIGTERM: the rows so far are saved, and a message says so.
#[test]
fn a_signal_saves_the_rows() {
    for signal in ["INT", "TERM"] {
        let run_dir = Fixture::new(MANY);
        // Signals that the test itself ignores, as in a background job of a shell, would be ignored by the
        // run, too.
        let default = ["--default-signal=INT,TERM"];
        let mut child = started_by("env", &default, &run_dir.command("out.npy", &[])).spawn().unwrap();
        wait_for(&run_dir.path(".out.npy.partial.json"), &mut child);
        let status = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        let output = child.wait_with_output().unwrap();
        assert_fails(&output, 130, &["interrupted: ", "rows saved", "--resume to continue"]);
        assert_eq!(
            run_dir.names(),
            [".out.npy.partial", ".out.npy.partial.json", ".out.npy.partial.ledger", "texts.jsonl"]
        );
        let again = run_dir.run("out.npy", &["--resume"]);
        assert_eq!(again.status.code(), Some(3));
        assert!(resumed_rows(&stderr(&again)) > Some(0), "{}", stderr(&again));
        run_dir.run("uninterrupted.npy", &[]);
        assert!(
            fs::read(run_dir.path("out.npy")).unwrap()
                == fs::read(run_dir.path("uninterrupted.npy")).unwrap()
        );
    }
}

#[test]
fn a_changed_option_model_or_input_is_refused_by_name() {
    let run_dir = Fixture::new(MANY);
    let manifest = run_dir.interrupted("out.jsonl", &[]);
    assert!(manifest["cursor"]["entries"].as_u64() > Some(0));
    let refused = |args: &[&str], parts: &[&str]| {
        let mut all = vec!["--resume", "--quiet"];
        all.extend(args);
        assert_fails(&run_dir.run("out.jsonl", &all), 2, &[&["--resume", "start over"], parts].concat());
        assert!(run_dir.path(".out.jsonl.partial").exists());
    };
    refused(&["--no-normalize"], &["--normalize", "from yes to no"]);
    refused(&["--pooling", "cls"], &["--pooling", "from mean to cls"]);
    refused(&["--max-length", "20"], &["--max-length", "from 24 to 20"]);
    refused(&["--prompt", "query: "], &["--prompt", "query: "]);
    refused(&["--dimensions", "8"], &["--dimensions", "from 36 to 8"]);
    refused(&["--output-dtype", "f16"], &["--output-dtype", "from f32 to f16"]);
    refused(&["--output-format", "csv"], &["--output-format", "from jsonl to csv"]);
    refused(&["--id-field", "year"], &["--id-field"]);
    refused(&["--keep", "text"], &["--keep"]);

    // Another build of the same version.
    let path = run_dir.path(".out.jsonl.partial.json");
    let complete = fs::read(&path).unwrap();
    let release = manifest["identity"]["the release of Sconce"].as_str().unwrap();
    let build = release.split_once(" (build ").unwrap().1.trim_end_matches(')');
    assert!(build.len() == 16 && build.bytes().all(|digit| digit.is_ascii_hexdigit()), "{release}");
    let mut other = manifest.clone();
    other["identity"]["the release of Sconce"] = release.replace(build, "0123456789abcdef").into();
    other.as_object_mut().unwrap().remove("checksum");
    fs::write(&path, other.to_string()).unwrap();
    refused(&[], &["the release of Sconce has changed", "build 0123456789abcdef", build]);
    fs::write(&path, &complete).unwrap();

    // Another model of the same shape.
    let model = run_dir.path("model");
    support::copy_folder(&fixture("bert-tiny"), &model);
    let weights = fs::read(model.join("model.safetensors")).unwrap();
    let mut other = weights.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(model.join("model.safetensors"), other).unwrap();
    refused(&["--model", model.to_str().unwrap()], &["the model's model.safetensors"]);

    // A text has changed, but the size of the file and its modification time have not.
    let texts = run_dir.path("texts.jsonl");
    let (content, times) = (fs::read(&texts).unwrap(), fs::metadata(&texts).unwrap().modified().unwrap());
    let mut changed = content.clone();
    changed[12] = b'x';
    fs::write(&texts, &changed).unwrap();
    refused(&[], &["records of the input differ from those"]);
    fs::File::options().write(true).open(&texts).unwrap().set_modified(times).unwrap();
    refused(&[], &["records of the input differ from those"]);

    // With the same records up to there, the run is resumed: the modification time and later records do not
    // matter.
    let more = [&content[..], b"{\"text\": \"one more\"}\n"].concat();
    fs::write(&texts, &more).unwrap();
    let output = run_dir.run("out.jsonl", &["--resume", "--threads", "1"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(resumed_rows(&stderr(&output)) > Some(0), "{}", stderr(&output));
    run_dir.run("uninterrupted.jsonl", &[]);
    assert!(
        fs::read(run_dir.path("out.jsonl")).unwrap()
            == fs::read(run_dir.path("uninterrupted.jsonl")).unwrap()
    );
}

/// Without --resume the run is refused; --restart drops the saved rows.
#[test]
fn starting_over_needs_restart() {
    let run_dir = Fixture::new(MANY);
    run_dir.interrupted("out.csv", &[]);
    let before = fs::read(run_dir.path(".out.csv.partial")).unwrap();
    let output = run_dir.run("out.csv", &[]);
    assert_fails(&output, 2, &["out.csv", "rows of an interrupted run", "--resume", "--restart"]);
    assert!(fs::read(run_dir.path(".out.csv.partial")).unwrap() == before);
    assert_eq!(run_dir.run("out.csv", &["--resume", "--restart"]).status.code(), Some(2));
    let output = run_dir.run("out.csv", &["--restart"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("starting over"), "{}", stderr(&output));
    assert_eq!(run_dir.names(), [".out.csv.done.json", "out.csv", "out.csv.ledger.jsonl", "texts.jsonl"]);
}

/// With --resume, an output that has a row for each record of its input is not computed again.
#[test]
fn a_finished_output_is_up_to_date() {
    let run_dir = Fixture::new(300);
    for format in FORMATS {
        let name = format!("out.{format}");
        let nothing = run_dir.run(&name, &["--resume"]);
        assert!(stderr(&nothing).contains("nothing to resume"), "{}", stderr(&nothing));
        let written = |name: &str| fs::metadata(run_dir.path(name)).unwrap().modified().unwrap();
        let (complete, time) = (fs::read(run_dir.path(&name)).unwrap(), written(&name));
        let output = run_dir.run(&name, &["--resume"]);
        assert_eq!(output.status.code(), Some(3), "the exit code of the run that wrote it");
        assert!(stderr(&output).contains(&format!("{name} is up to date: 297 rows")), "{}", stderr(&output));
        assert_eq!(written(&name), time);
        // The run that wrote it may have been killed before it had written its summary.
        let stats = run_dir.path("stats.json").display().to_string();
        assert_eq!(run_dir.run(&name, &["--resume", "--stats", &stats]).status.code(), Some(3));
        let resumed = run_dir.take_summary();
        assert_eq!((&resumed["rows"], &resumed["rows_resumed"]), (&297.into(), &297.into()), "{format}");
        assert_eq!(written(&name), time);
        // It is computed again without --resume, and with another option.
        assert_eq!(run_dir.run(&name, &["--stats", &stats]).status.code(), Some(3));
        assert!(fs::read(run_dir.path(&name)).unwrap() == complete && written(&name) > time);
        let computed = run_dir.take_summary();
        for (key, value) in &resumed {
            assert!(MEASURED.contains(&key.as_str()) || *value == computed[key], "{format}: {key}");
        }
        let output = run_dir.run(&name, &["--resume", "--no-normalize"]);
        assert!(stderr(&output).contains("--normalize has changed"), "{}", stderr(&output));
        assert!(fs::read(run_dir.path(&name)).unwrap() != complete);
    }
    let texts = run_dir.path("texts.jsonl");
    let content = fs::read(&texts).unwrap();
    fs::write(&texts, &content).unwrap();
    let output = run_dir.run("out.csv", &["--resume", "--no-normalize"]);
    assert!(
        stderr(&output).contains("up to date"),
        "the same bytes with another modification time: {}",
        stderr(&output)
    );
    fs::write(&texts, [&content[..], b"{\"text\": \"one more\"}\n"].concat()).unwrap();
    let output = run_dir.run("out.csv", &["--resume", "--no-normalize"]);
    assert!(stderr(&output).contains("the input has changed"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(run_dir.path("out.csv")).unwrap().lines().count(), 299);
    // An output that another program has written is not recognised.
    fs::write(run_dir.path("out.csv"), "what was there").unwrap();
    let output = run_dir.run("out.csv", &["--resume", "--no-normalize"]);
    assert!(stderr(&output).contains("nothing to resume"), "{}", stderr(&output));
}

/// Changed bytes are found before anything is computed.
#[test]
fn damaged_sidecar_files_are_refused() {
    let run_dir = Fixture::new(MANY);
    run_dir.interrupted("out.csv", &[]);
    for name in [".out.csv.partial", ".out.csv.partial.json", ".out.csv.partial.ledger"] {
        let complete = fs::read(run_dir.path(name)).unwrap();
        let mut damaged = complete.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(run_dir.path(name), &damaged).unwrap();
        let output = run_dir.run("out.csv", &["--resume", "--quiet"]);
        let rows = if name.ends_with(".partial") { "(rows " } else { "" };
        assert_fails(&output, 1, &[name, rows, "--restart"]);
        assert!(fs::read(run_dir.path(name)).unwrap() == damaged);
        fs::write(run_dir.path(name), &complete).unwrap();
    }
    assert_eq!(run_dir.run("out.csv", &["--resume"]).status.code(), Some(3));
}

/// A run that ended at an unreadable record is resumed with another --on-error.
#[test]
fn a_record_that_ended_the_run_can_be_skipped() {
    let run_dir = Fixture::new(100);
    let stop = |args: &[&str]| {
        let mut all = vec!["--on-error", "stop", "--quiet"];
        all.extend(args);
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(run_dir.path("texts.jsonl"));
        command.arg("-o").arg(run_dir.path("out.jsonl")).args(all).output().unwrap()
    };
    assert_fails(
        &stop(&[]),
        1,
        &["texts.jsonl line 32", "a number", "31 rows are saved", "--resume and --on-error skip"],
    );
    assert!(!run_dir.path("out.jsonl").exists());
    assert_fails(&stop(&["--resume"]), 1, &["texts.jsonl line 32", "31 rows are saved"]);
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(run_dir.path("texts.jsonl"));
    command.arg("-o").arg(run_dir.path("out.jsonl")).args([
        "--resume",
        "--on-error",
        "skip",
        "--on-long",
        "skip",
    ]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(run_dir.path("out.jsonl")).unwrap().lines().count(), 98);
    assert_eq!(fs::read_to_string(run_dir.path("out.jsonl.ledger.jsonl")).unwrap().lines().count(), 2);
}

/// A run that fails before its first row keeps the saved rows of an earlier run.
#[test]
fn a_failure_before_the_first_row_drops_nothing() {
    let run_dir = Fixture::new(MANY);
    run_dir.interrupted("out.csv", &[]);
    let before = fs::read(run_dir.path(".out.csv.partial.json")).unwrap();
    fs::write(run_dir.path("bad.csv"), "no\nsuch\n").unwrap();
    fs::write(run_dir.path("worse.txt"), b"\xff\n").unwrap();
    for input in ["bad.csv", "worse.txt"] {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(run_dir.path(input));
        let output = command.arg("-o").arg(run_dir.path("out.csv")).arg("--restart").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(
            fs::read(run_dir.path(".out.csv.partial.json")).unwrap_or_default() == before
                || input == "worse.txt"
        );
    }
}

/// A run that is killed after the rename of the output and before the removal of its sidecar files.
#[test]
fn sidecar_files_of_a_complete_output_are_removed() {
    let run_dir = Fixture::new(MANY);
    assert_eq!(run_dir.run("uninterrupted.npy", &[]).status.code(), Some(3));
    let mut manifest = run_dir.interrupted("out.npy", &[]);
    let ledger = fs::read(run_dir.path("uninterrupted.npy.ledger.jsonl")).unwrap();
    manifest["complete"] = true.into();
    manifest["ledger"] = ledger.len().into();
    for digest in ["checksum", "ledger_sha256"] {
        manifest.as_object_mut().unwrap().remove(digest);
    }
    let prepare = || {
        fs::write(run_dir.path(".out.npy.partial.json"), manifest.to_string()).unwrap();
        fs::write(run_dir.path(".out.npy.partial.ledger"), &ledger).unwrap();
        let _ = fs::remove_file(run_dir.path(".out.npy.partial"));
    };
    // Without the output, the rows are lost.
    prepare();
    let output = run_dir.run("out.npy", &["--resume", "--quiet"]);
    assert_fails(&output, 1, &[".out.npy.partial no longer exists", "--restart"]);
    prepare();
    fs::copy(run_dir.path("uninterrupted.npy"), run_dir.path("out.npy")).unwrap();
    let output =
        run_dir.run("out.npy", &["--resume", "--stats", run_dir.path("stats.json").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        fs::read(run_dir.path("out.npy")).unwrap() == fs::read(run_dir.path("uninterrupted.npy")).unwrap()
    );
    assert!(fs::read(run_dir.path("out.npy.ledger.jsonl")).unwrap() == ledger);
    assert!(run_dir.path("stats.json").exists());
    let hidden: Vec<_> = run_dir.names().into_iter().filter(|name| name.starts_with('.')).collect();
    assert_eq!(hidden, [".out.npy.done.json", ".uninterrupted.npy.done.json"]);
    // An output that was renamed before the manifest was written is an older one.
    thread::sleep(Duration::from_millis(20));
    prepare();
    let output = run_dir.run("out.npy", &["--resume", "--quiet"]);
    assert_fails(&output, 1, &[".out.npy.partial no longer exists"]);
}

/// A signal that is ignored at start-up, as under nohup, stays ignored.
#[test]
fn an_ignored_signal_stays_ignored() {
    let run_dir = Fixture::new(MANY);
    let ignore = ["-c", "trap '' INT; exec \"$@\"", "-"];
    let mut child = started_by("bash", &ignore, &run_dir.command("out.npy", &[])).spawn().unwrap();
    wait_for(&run_dir.path(".out.npy.partial.json"), &mut child);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn standard_output_cannot_be_resumed() {
    let output = support::embed("bert-tiny", ["--resume", "a lamp"]);
    assert_fails(&output, 2, &["--resume", "standard output"]);
}

/// The second run is refused, and the first one completes.
#[test]
fn two_runs_cannot_write_one_file() {
    let run_dir = Fixture::new(MANY);
    let mut first = run_dir.command("out.jsonl", &[]).spawn().unwrap();
    wait_for(&run_dir.path(".out.jsonl.partial.json"), &mut first);
    for args in [&["--quiet"][..], &["--quiet", "--resume"]] {
        assert_fails(&run_dir.run("out.jsonl", args), 1, &["out.jsonl", "another sconce", "--output"]);
    }
    assert_eq!(first.wait().unwrap().code(), Some(3));
    run_dir.run("uninterrupted.jsonl", &[]);
    assert!(
        fs::read(run_dir.path("out.jsonl")).unwrap()
            == fs::read(run_dir.path("uninterrupted.jsonl")).unwrap()
    );
}
