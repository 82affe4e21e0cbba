//! The progress bar and colours, on a pseudo-terminal made by `script`.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{fixture, sconce, stdout};
use tempfile::TempDir;

/// Where the standard output of a command goes; its standard error is the terminal.
#[derive(PartialEq)]
enum Stdout {
    Terminal,
    DevNull,
}

/// What a successful command sends to a terminal of `columns` columns.
fn on_terminal(command: &Command, columns: u16, to: Stdout) -> String {
    let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
    let words = [command.get_program()].into_iter().chain(command.get_args()).map(quoted);
    let line = words.collect::<Vec<_>>().join(" ");
    let to = if to == Stdout::DevNull { ">/dev/null" } else { "" };
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command"]);
    script.arg(format!("stty rows 24 cols {columns}; {line} </dev/null {to}")).arg("/dev/null");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let output = script.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap();
    let sent = stdout(&output);
    assert!(output.status.success(), "{sent}");
    sent
}

/// The non-empty lines sent to a terminal, overwritten ones included, without control sequences.
fn lines(sent: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut chars = sent.chars();
    while let Some(c) = chars.next() {
        match c {
            // A control sequence ends with a letter.
            '\x1b' => drop(chars.by_ref().skip(1).find(char::is_ascii_alphabetic)),
            '\r' | '\n' => lines.push(String::new()),
            c => lines.last_mut().unwrap().push(c),
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// A command that takes some seconds: a random model and a file of 3,000 lines.
fn slow(folder: &TempDir) -> Command {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/all-MiniLM-L6-v2.json");
    let input = folder.path().join("in.txt");
    // Each has other tokens: equal texts are encoded once.
    let line = |i: usize| {
        format!("{i:06}").chars().fold("the wick burns".to_owned(), |line, digit| format!("{line} {digit}"))
    };
    fs::write(&input, (0..3_000).map(|i| line(i) + "\n").collect::<String>()).unwrap();
    let mut command = sconce();
    command.args(["embed", "--random-weights", "1", "--threads", "1", "--config"]).arg(config);
    command.arg("--tokenizer").arg(fixture("bert-tiny").join("tokenizer.json")).arg("-i").arg(input);
    command
}

fn into_file(folder: &TempDir) -> Command {
    let mut command = slow(folder);
    command.args(["--restart", "-o"]).arg(folder.path().join("out.npy"));
    command
}

#[test]
fn progress_is_drawn_and_cleared() {
    let folder = tempfile::tempdir().unwrap();
    for columns in [200, 80, 40] {
        let sent = on_terminal(&into_file(&folder), columns, Stdout::DevNull);
        let lines = lines(&sent);
        let (last, bars): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("sconce: "));
        assert!(bars.len() > 1, "{sent:?}");
        for bar in &bars {
            assert!(bar.contains("% of 81.0 kB"), "{bar}");
            assert!(bar.chars().count() <= usize::from(columns), "{columns} columns: {bar}");
        }
        let bar = bars[0];
        // The bar appears after a second.
        let elapsed = bar.split(", ").find_map(|part| part.strip_suffix(" elapsed"));
        assert!(elapsed.is_some_and(|seconds| seconds != "0s"), "{bar}");
        if columns == 200 {
            for part in [" rows, ", " rows/s, ", " tokens/s", " left"] {
                assert!(bar.contains(part), "{bar}");
            }
        }
        assert!(!sent.contains("\x1b[3") && !sent.contains("\x1b[0m"), "no colours: {sent:?}");
        // The bar is cleared before the last line is written.
        let last = last.last().unwrap();
        assert!(
            last.starts_with("sconce: 3,000 rows, 36,000 tokens in ") && last.ends_with("out.npy"),
            "{last}"
        );
        let (before, after) = sent.rsplit_once("\x1b[2K").or_else(|| sent.rsplit_once("\x1b[K")).unwrap();
        assert!(before.contains('%') && !after.contains('%'), "{sent:?}");
    }
}

/// C1 controls, too: terminals take U+009B for the beginning of a control sequence.
#[test]
fn rows_on_a_terminal_have_no_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"text\": \"a lamp\", \"id\": \"x\u{9b}31m\\u001b[31m\u{7f}é\"}\n").unwrap();
    for format in ["jsonl", "csv"] {
        let mut command = sconce();
        command.args(["embed", "-q", "--dimensions", "2", "--output-format", format, "-i"]).arg(&input);
        command.arg("-m").arg(fixture("bert-tiny"));
        let sent = on_terminal(&command, 200, Stdout::Terminal);
        assert!(sent.contains("x\\u009b31m\\u001b[31m\\u007fé"), "{sent:?}");
        assert!(!sent.contains(|c: char| c.is_control() && !"\r\n".contains(c)), "{sent:?}");
        // Elsewhere, rows have the ids of the input.
        let piped = stdout(&command.output().unwrap());
        assert!(piped.contains("x\u{9b}31m"), "{piped:?}");
    }
}

#[test]
fn places_are_as_wide_as_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "candle \u{1b}[31m 灯灯灯灯 attention candle ".repeat(20))
        .unwrap();
    for (columns, context) in [(60, None), (70, None), (70, Some("0"))] {
        let mut command = sconce();
        command.arg("search").arg(folder.path().join("a.txt")).args(["lamp", "-q", "-k", "1", "--no-cache"]);
        command.args(context.map(|lines| format!("--context={lines}"))).arg("-m").arg(fixture("bert-tiny"));
        let sent = on_terminal(&command, columns, Stdout::Terminal);
        assert!(sent.contains("a.txt:1: ") && !sent.contains('\u{1b}'), "{sent:?}");
        for line in sent.lines().filter(|line| !line.trim().is_empty()) {
            // Only a wide character may leave a column free.
            let width: usize = line.trim_end().chars().map(|c| if c == '灯' { 2 } else { 1 }).sum();
            let columns = usize::from(columns);
            assert!(line.trim_end().ends_with('…') && (columns - 2..=columns).contains(&width), "{sent}");
        }
    }
}

#[test]
fn progress_is_not_drawn_with_quiet_or_beside_rows() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--quiet", "--no-progress"] {
        let mut command = into_file(&folder);
        command.arg(option);
        let sent = on_terminal(&command, 80, Stdout::DevNull);
        assert!(!sent.contains('%') && !sent.contains('\x1b'), "{sent:?}");
        assert_eq!(sent.contains("3,000 rows"), option == "--no-progress", "{sent:?}");
    }
    // No bar where the rows go to the same terminal.
    let mut command = slow(&folder);
    command.args(["--output-format", "jsonl", "--dimensions", "2"]);
    let sent = on_terminal(&command, 80, Stdout::Terminal);
    assert!(!sent.contains("% of") && !sent.contains('\x1b'), "control sequences");
    assert_eq!(sent.matches("\"embedding\":[").count(), 3_000);
}

#[test]
fn no_color_turns_colours_off() {
    let help = |no_color: Option<&str>| {
        let mut command = sconce();
        command.args(["embed", "--help"]).env_remove("NO_COLOR");
        command.envs(no_color.map(|value| ("NO_COLOR", value)));
        on_terminal(&command, 80, Stdout::Terminal)
    };
    assert!(help(None).contains("\x1b["));
    assert!(!help(Some("1")).contains("\x1b["));
    let folder = tempfile::tempdir().unwrap();
    let mut command = into_file(&folder);
    command.env("NO_COLOR", "1");
    let sent = on_terminal(&command, 80, Stdout::DevNull);
    let colours = sent.split("\x1b[").skip(1).filter(|part| {
        part.find(|c: char| c.is_ascii_alphabetic()).is_some_and(|end| part[end..].starts_with('m'))
    });
    assert_eq!(colours.count(), 0, "{sent:?}");
    assert!(sent.contains("% of"));
}
