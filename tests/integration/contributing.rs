//! The diffs of CONTRIBUTING.md show the source as it is.

use std::fs;
use std::path::Path;

/// Files that exist only in an example, each with the file whose tests contain the example.
const EXAMPLES: &[(&str, &str)] = &[("src/task/token_counter.rs", "src/engine/task.rs")];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The diffs of a page: the path after `+++`, and the lines without their first column and without
/// indentation.
fn diffs(page: &str) -> Vec<(String, Vec<String>)> {
    let mut diffs: Vec<(String, Vec<String>)> = Vec::new();
    for block in page.split("```diff\n").skip(1) {
        for line in block.lines().take_while(|line| line.trim() != "```").map(str::trim_start) {
            match (line.strip_prefix("+++ "), diffs.last_mut()) {
                (Some(path), _) => diffs.push((path.into(), Vec::new())),
                (None, Some((_, lines))) => lines.push(line.trim_start_matches('+').trim().into()),
                (None, None) => panic!("CONTRIBUTING.md: a diff begins with {line:?} instead of +++ PATH"),
            }
        }
    }
    diffs
}

/// Each diff shows how an existing task, family, format or ISA was added: its lines are in the file, in this
/// order.
#[test]
fn every_line_of_a_diff_is_in_its_file() {
    let diffs = diffs(&read("CONTRIBUTING.md"));
    assert!(diffs.len() >= 10, "{} diffs", diffs.len());
    for (path, lines) in diffs {
        let file = EXAMPLES.iter().find(|(example, _)| *example == path).map_or(&*path, |(_, file)| file);
        let source = read(file);
        let mut rest = source.lines().map(str::trim);
        for line in lines.iter().filter(|line| !line.is_empty()) {
            assert!(
                rest.any(|found| found == line),
                "CONTRIBUTING.md: {file} has no line {line:?} after the lines before it in the diff"
            );
        }
    }
}
