//! The report of a comparison, as text or JSON.

use std::fmt::Write;

use serde_json::json;

use super::reference::Reference;
use crate::nn::Backend;
use crate::sys::console::counted;
use crate::sys::terminal::escape_controls;
use crate::task::precision::{AtRow, Bounds, Comparison};

/// A comparison with its bounds.
pub(super) struct Report<'a> {
    pub comparison: &'a Comparison,
    pub bounds: &'a Bounds,
    pub reference: &'a Reference,
    pub backend: &'a Backend,
}

impl Report<'_> {
    /// The report for people.
    pub(super) fn text(&self) -> String {
        let Report { comparison, bounds, reference, backend } = self;
        let rows = counted(reference.vectors.len() as u64, "vector");
        let name = escape_controls(&reference.name).into_owned();
        let mut page = format!(
            "{rows} of {} dimensions: {name} and {} on {backend}\n\n",
            reference.dimensions,
            backend.dtype()
        );
        let at = |at: &AtRow| {
            let location = reference.texts[at.row].location.to_string();
            format!("row {} ({})", reference.rows[at.row], escape_controls(&location))
        };
        let difference =
            bounds.max_difference.map_or("no limit".into(), |bound| format!("at most {bound:.1e}"));
        let share = match comparison.neighbours {
            Some(share) => format!("{:.2} %", 100.0 * share),
            None => "too few rows".into(),
        };
        let lines = [
            (
                "largest difference",
                format!("{:.1e}", comparison.max_difference.value),
                difference,
                at(&comparison.max_difference),
            ),
            (
                "least cosine",
                format!("{:.7}", comparison.min_cosine.value),
                format!("at least {}", bounds.min_cosine),
                at(&comparison.min_cosine),
            ),
            ("mean cosine", format!("{:.7}", comparison.mean_cosine), String::new(), String::new()),
            (
                "same neighbours",
                share,
                format!("at least {} %", 100.0 * bounds.min_neighbours),
                String::new(),
            ),
        ];
        for (what, found, bound, row) in lines {
            let line = format!("{what:<18}  {found:>12}  {bound:<17}  {row}");
            let _ = writeln!(page, "{}", line.trim_end());
        }
        page.push_str(if bounds.failures(comparison).is_empty() { "\npassed\n" } else { "\nfailed\n" });
        page
    }

    /// The report as a JSON object.
    pub(super) fn json(&self) -> String {
        let Report { comparison, bounds, reference, backend } = self;
        let object = json!({
            "rows": reference.vectors.len(),
            "dimensions": reference.dimensions,
            "dtype": backend.dtype(),
            "device": backend.to_string(),
            "max_difference": comparison.max_difference.value,
            "max_difference_row": reference.rows[comparison.max_difference.row],
            "min_cosine": comparison.min_cosine.value,
            "min_cosine_row": reference.rows[comparison.min_cosine.row],
            "mean_cosine": comparison.mean_cosine,
            "neighbours": comparison.neighbours,
            "bounds": bounds.json(),
            "passed": bounds.failures(comparison).is_empty(),
        });
        format!("{object:#}\n")
    }
}
