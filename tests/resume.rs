//! A run that is stopped goes on where it was, and ends in what an uninterrupted run gives, byte for byte.

mod support;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{assert_fails, fixture, sconce, stderr};
use tempfile::TempDir;

/// Records of a run that saves rows several times before its end: saves are 200 ms apart.
const MANY: usize = 40_000;

const FORMATS: [&str; 6] = ["jsonl", "csv", "npy", "parquet", "arrow", "safetensors"];

/// A folder with an input of so many records: some long, some that cannot be read.
struct Place {
    folder: TempDir,
}

impl Place {
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
        Place { folder }
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

    fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(self.folder.path()).unwrap().map(name).collect();
        names.sort();
        names
    }

    /// Starts a run and stops it as soon as rows of it are durable; the manifest as it is then.
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
        assert!(child.try_wait().unwrap().is_none(), "ended before {} was there", file.display());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a manifest differs from what it was before the run, or the run has ended.
fn wait_for_save(manifest: &Path, before: Option<&[u8]>, child: &mut Child) {
    let has_saved = || fs::read(manifest).is_ok_and(|now| Some(&now[..]) != before);
    while !has_saved() && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Rows that a run says it goes on after.
fn resumed(message: &str) -> Option<u64> {
    let rest = message.split("resuming after ").nth(1)?;
    rest.split(' ').next()?.replace(',', "").parse().ok()
}

#[test]
fn killed_twenty_times() {
    thread::scope(|scope| {
        for formats in FORMATS.chunks(3) {
            scope.spawn(|| formats.iter().for_each(|format| killed_twenty_times_into(format)));
        }
    });
}

/// A kill comes at a random time, early in what is left of the run; each fourth one comes only after the run has saved
/// rows, however long that takes, so that there is progress on fast and on busy machines.
fn killed_twenty_times_into(format: &str) {
    let place = Place::new(MANY);
    let (whole, broken) = (format!("whole.{format}"), format!("broken.{format}"));
    let start = Instant::now();
    assert_eq!(place.run(&whole, &[]).status.code(), Some(3));
    let took = start.elapsed();
    let ledger = format!("{whole}.ledger.jsonl");
    let mut expected = vec![format!(".{whole}.done.json"), "texts.jsonl".into(), whole.clone(), ledger];
    expected.extend((format == "npy").then(|| format!("{whole}.meta.json")));
    assert_eq!(place.names(), expected);
    let same = |a: &str, b: &str| {
        assert!(fs::read(place.path(a)).unwrap() == fs::read(place.path(b)).unwrap(), "{a} and {b} differ");
    };

    let manifest = place.path(&format!(".{broken}.partial.json"));
    let mut random = ChaCha8Rng::seed_from_u64(format.len() as u64);
    let mut progress = Vec::new();
    for kill in 0..20 {
        let args: &[&str] = if kill == 0 { &[] } else { &["--resume"] };
        let before = fs::read(&manifest).ok();
        let mut child = place.command(&broken, args).spawn().unwrap();
        if kill % 4 == 0 {
            wait_for_save(&manifest, before.as_deref(), &mut child);
        } else {
            thread::sleep(took.mul_f64(random.random_range(0.02..0.2)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        progress.extend(resumed(&message));
        // It may have been killed after its last row: a file that has its name is whole.
        if place.path(&broken).exists() {
            same(&broken, &whole);
            break;
        }
    }
    let last = place.run(&broken, &["--resume"]);
    assert_eq!(last.status.code(), Some(3), "{format}: {}", stderr(&last));
    progress.extend(resumed(&stderr(&last)));
    assert!(progress.is_sorted() && progress.last() > Some(&0), "{format}: {progress:?}");
    same(&broken, &whole);
    same(&format!("{broken}.ledger.jsonl"), &format!("{whole}.ledger.jsonl"));
    same(&format!("{broken}.ledger.jsonl"), &format!("{whole}.ledger.jsonl"));
    assert_eq!(place.names().len(), 2 * expected.len() - 1, "{:?}", place.names());
}

/// Ctrl-C and a polite kill: what is done is kept, and said.
#[test]
fn interrupted_politely() {
    for signal in ["INT", "TERM"] {
        let place = Place::new(MANY);
        let mut child = place.command("out.npy", &[]).spawn().unwrap();
        wait_for(&place.path(".out.npy.partial.json"), &mut child);
        let status = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        let output = child.wait_with_output().unwrap();
        assert_fails(&output, 130, &["interrupted: ", "rows saved", "--resume to continue"]);
        assert_eq!(
            place.names(),
            [".out.npy.partial", ".out.npy.partial.json", ".out.npy.partial.ledger", "texts.jsonl"]
        );
        let again = place.run("out.npy", &["--resume"]);
        assert_eq!(again.status.code(), Some(3));
        assert!(resumed(&stderr(&again)) > Some(0), "{}", stderr(&again));
        place.run("whole.npy", &[]);
        assert!(fs::read(place.path("out.npy")).unwrap() == fs::read(place.path("whole.npy")).unwrap());
    }
}

#[test]
fn what_has_changed_is_named() {
    let place = Place::new(MANY);
    let manifest = place.interrupted("out.jsonl", &[]);
    assert!(manifest["done"]["entries"].as_u64() > Some(0));
    let refused = |args: &[&str], parts: &[&str]| {
        let mut all = vec!["--resume", "--quiet"];
        all.extend(args);
        assert_fails(&place.run("out.jsonl", &all), 2, &[&["--resume", "start over"], parts].concat());
        assert!(place.path(".out.jsonl.partial").exists());
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

    // Another build of the same release.
    let path = place.path(".out.jsonl.partial.json");
    let whole = fs::read(&path).unwrap();
    let release = manifest["identity"]["the release of Sconce"].as_str().unwrap();
    let build = release.split_once(" (build ").unwrap().1.trim_end_matches(')');
    assert!(build.len() == 16 && build.bytes().all(|digit| digit.is_ascii_hexdigit()), "{release}");
    let mut other = manifest.clone();
    other["identity"]["the release of Sconce"] = release.replace(build, "0123456789abcdef").into();
    other.as_object_mut().unwrap().remove("checksum");
    fs::write(&path, other.to_string()).unwrap();
    refused(&[], &["the release of Sconce has changed", "build 0123456789abcdef", build]);
    fs::write(&path, &whole).unwrap();

    // Another model of the same shape.
    let model = place.path("model");
    support::copy_folder(&fixture("bert-tiny"), &model);
    let weights = fs::read(model.join("model.safetensors")).unwrap();
    let mut other = weights.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(model.join("model.safetensors"), other).unwrap();
    refused(&["--model", model.to_str().unwrap()], &["the model's model.safetensors"]);

    // A text is another, though the file is as long and as old as it was.
    let texts = place.path("texts.jsonl");
    let (content, times) = (fs::read(&texts).unwrap(), fs::metadata(&texts).unwrap().modified().unwrap());
    let mut changed = content.clone();
    changed[12] = b'x';
    fs::write(&texts, &changed).unwrap();
    refused(&[], &["records of the input are not those"]);
    fs::File::options().write(true).open(&texts).unwrap().set_modified(times).unwrap();
    refused(&[], &["records of the input are not those"]);

    // With the records that it has read, it goes on: neither when they were written nor what follows them counts.
    let more = [&content[..], b"{\"text\": \"one more\"}\n"].concat();
    fs::write(&texts, &more).unwrap();
    let output = place.run("out.jsonl", &["--resume", "--threads", "1"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(resumed(&stderr(&output)) > Some(0), "{}", stderr(&output));
    place.run("whole.jsonl", &[]);
    assert!(fs::read(place.path("out.jsonl")).unwrap() == fs::read(place.path("whole.jsonl")).unwrap());
}

/// Whoever forgets --resume loses nothing: the run is refused, and --restart drops the rows.
#[test]
fn starting_over_has_to_be_asked_for() {
    let place = Place::new(MANY);
    place.interrupted("out.csv", &[]);
    let before = fs::read(place.path(".out.csv.partial")).unwrap();
    let output = place.run("out.csv", &[]);
    assert_fails(&output, 2, &["out.csv", "rows of an interrupted run", "--resume", "--restart"]);
    assert!(fs::read(place.path(".out.csv.partial")).unwrap() == before);
    assert_eq!(place.run("out.csv", &["--resume", "--restart"]).status.code(), Some(2));
    let output = place.run("out.csv", &["--restart"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("starting over"), "{}", stderr(&output));
    assert_eq!(place.names(), [".out.csv.done.json", "out.csv", "out.csv.ledger.jsonl", "texts.jsonl"]);
}

/// With --resume an output that has all rows of its input is not computed again; one that has not is.
#[test]
fn a_finished_output_is_up_to_date() {
    let place = Place::new(300);
    for format in FORMATS {
        let name = format!("out.{format}");
        let nothing = place.run(&name, &["--resume"]);
        assert!(stderr(&nothing).contains("nothing to resume"), "{}", stderr(&nothing));
        let written = |name: &str| fs::metadata(place.path(name)).unwrap().modified().unwrap();
        let (whole, time) = (fs::read(place.path(&name)).unwrap(), written(&name));
        let output = place.run(&name, &["--resume"]);
        assert_eq!(output.status.code(), Some(3), "as the run that made it");
        assert!(stderr(&output).contains(&format!("{name} is up to date: 297 rows")), "{}", stderr(&output));
        assert_eq!(written(&name), time);
        // Without the option it is made again, with another one it is another.
        assert_eq!(place.run(&name, &[]).status.code(), Some(3));
        assert!(fs::read(place.path(&name)).unwrap() == whole && written(&name) > time);
        let output = place.run(&name, &["--resume", "--no-normalize"]);
        assert!(stderr(&output).contains("--normalize has changed"), "{}", stderr(&output));
        assert!(fs::read(place.path(&name)).unwrap() != whole);
    }
    let texts = place.path("texts.jsonl");
    let content = fs::read(&texts).unwrap();
    fs::write(&texts, &content).unwrap();
    let output = place.run("out.csv", &["--resume", "--no-normalize"]);
    assert!(stderr(&output).contains("up to date"), "the same bytes, written anew: {}", stderr(&output));
    fs::write(&texts, [&content[..], b"{\"text\": \"one more\"}\n"].concat()).unwrap();
    let output = place.run("out.csv", &["--resume", "--no-normalize"]);
    assert!(stderr(&output).contains("the input has changed"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(place.path("out.csv")).unwrap().lines().count(), 299);
    // An output that somebody else has written is not vouched for.
    fs::write(place.path("out.csv"), "what was there").unwrap();
    let output = place.run("out.csv", &["--resume", "--no-normalize"]);
    assert!(stderr(&output).contains("nothing to resume"), "{}", stderr(&output));
}

/// Bytes that were changed behind its back are not continued, and nothing is computed before that is found out.
#[test]
fn what_was_damaged_is_not_continued() {
    let place = Place::new(MANY);
    place.interrupted("out.csv", &[]);
    for name in [".out.csv.partial", ".out.csv.partial.json", ".out.csv.partial.ledger"] {
        let whole = fs::read(place.path(name)).unwrap();
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(place.path(name), &damaged).unwrap();
        let output = place.run("out.csv", &["--resume", "--quiet"]);
        let rows = if name.ends_with(".partial") { "(rows " } else { "" };
        assert_fails(&output, 1, &[name, rows, "--restart"]);
        assert!(fs::read(place.path(name)).unwrap() == damaged);
        fs::write(place.path(name), &whole).unwrap();
    }
    assert_eq!(place.run("out.csv", &["--resume"]).status.code(), Some(3));
}

/// A run that dies over a record goes on over it once the user says how.
#[test]
fn a_record_that_stopped_the_run() {
    let place = Place::new(100);
    let stop = |args: &[&str]| {
        let mut all = vec!["--on-error", "stop", "--quiet"];
        all.extend(args);
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(place.path("texts.jsonl"));
        command.arg("-o").arg(place.path("out.jsonl")).args(all).output().unwrap()
    };
    assert_fails(
        &stop(&[]),
        1,
        &["texts.jsonl line 32", "a number", "31 rows are kept", "--resume and --on-error skip"],
    );
    assert!(!place.path("out.jsonl").exists());
    assert_fails(&stop(&["--resume"]), 1, &["texts.jsonl line 32", "31 rows are kept"]);
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(place.path("texts.jsonl"));
    command.arg("-o").arg(place.path("out.jsonl")).args([
        "--resume",
        "--on-error",
        "skip",
        "--on-long",
        "skip",
    ]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(place.path("out.jsonl")).unwrap().lines().count(), 98);
    assert_eq!(fs::read_to_string(place.path("out.jsonl.ledger.jsonl")).unwrap().lines().count(), 2);
}

/// A run that fails before it has anything of its own leaves what an earlier one has.
#[test]
fn a_failure_before_the_first_row_costs_nothing() {
    let place = Place::new(MANY);
    place.interrupted("out.csv", &[]);
    let before = fs::read(place.path(".out.csv.partial.json")).unwrap();
    fs::write(place.path("bad.csv"), "no\nsuch\n").unwrap();
    fs::write(place.path("worse.txt"), b"\xff\n").unwrap();
    for input in ["bad.csv", "worse.txt"] {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(place.path(input));
        let output = command.arg("-o").arg(place.path("out.csv")).arg("--restart").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(
            fs::read(place.path(".out.csv.partial.json")).unwrap_or_default() == before
                || input == "worse.txt"
        );
    }
}

/// Killed between giving the output its name and tidying up.
#[test]
fn what_was_complete_is_tidied_up() {
    let place = Place::new(MANY);
    assert_eq!(place.run("whole.npy", &[]).status.code(), Some(3));
    let mut manifest = place.interrupted("out.npy", &[]);
    let ledger = fs::read(place.path("whole.npy.ledger.jsonl")).unwrap();
    manifest["complete"] = true.into();
    manifest["ledger"] = ledger.len().into();
    for digest in ["checksum", "ledger_sha256"] {
        manifest.as_object_mut().unwrap().remove(digest);
    }
    let prepare = || {
        fs::write(place.path(".out.npy.partial.json"), manifest.to_string()).unwrap();
        fs::write(place.path(".out.npy.partial.ledger"), &ledger).unwrap();
        let _ = fs::remove_file(place.path(".out.npy.partial"));
    };
    // Without the output, nothing was complete.
    prepare();
    let output = place.run("out.npy", &["--resume", "--quiet"]);
    assert_fails(&output, 1, &[".out.npy.partial is not there any more", "--restart"]);
    prepare();
    fs::copy(place.path("whole.npy"), place.path("out.npy")).unwrap();
    let output = place.run("out.npy", &["--resume", "--stats", place.path("stats.json").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(fs::read(place.path("out.npy")).unwrap() == fs::read(place.path("whole.npy")).unwrap());
    assert!(fs::read(place.path("out.npy.ledger.jsonl")).unwrap() == ledger);
    assert!(place.path("stats.json").exists());
    let hidden: Vec<_> = place.names().into_iter().filter(|name| name.starts_with('.')).collect();
    assert_eq!(hidden, [".out.npy.done.json", ".whole.npy.done.json"]);
    // An older output is not what was completed.
    thread::sleep(Duration::from_millis(20));
    prepare();
    let output = place.run("out.npy", &["--resume", "--quiet"]);
    assert_fails(&output, 1, &[".out.npy.partial is not there any more"]);
}

/// What whoever starts a run has it ignore does not stop it.
#[test]
fn an_interrupt_that_is_to_be_ignored() {
    let place = Place::new(MANY);
    let command = place.command("out.npy", &[]);
    let mut ignoring = Command::new("bash");
    ignoring
        .args(["-c", "trap '' INT; exec \"$@\"", "-"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => ignoring.env(name, value),
            None => ignoring.env_remove(name),
        };
    }
    let mut child = ignoring.stderr(Stdio::null()).spawn().unwrap();
    wait_for(&place.path(".out.npy.partial.json"), &mut child);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn where_nothing_can_be_resumed() {
    let output = support::embed("bert-tiny", ["--resume", "a lamp"]);
    assert_fails(&output, 2, &["--resume", "standard output"]);
}

/// A second run into the same output is refused, and the first is none the worse.
#[test]
fn two_runs_into_one_file() {
    let place = Place::new(MANY);
    let mut first = place.command("out.jsonl", &[]).spawn().unwrap();
    wait_for(&place.path(".out.jsonl.partial.json"), &mut first);
    for args in [&["--quiet"][..], &["--quiet", "--resume"]] {
        assert_fails(&place.run("out.jsonl", args), 1, &["out.jsonl", "another sconce", "--output"]);
    }
    assert_eq!(first.wait().unwrap().code(), Some(3));
    place.run("whole.jsonl", &[]);
    assert!(fs::read(place.path("out.jsonl")).unwrap() == fs::read(place.path("whole.jsonl")).unwrap());
}
