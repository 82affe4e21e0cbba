//! The report as a page of text, in groups of aligned lines.

use std::path::{Path, PathBuf};

use anyhow::Result;
use bytesize::ByteSize;

use super::cost::Cost;
use super::describe::describe_encoder;
use super::files::ModelFile;
use super::multi_vector;
use crate::checkpoint::TensorReport;
use crate::load::{Examined, ExaminedHead};
use crate::model::modules::{PoolingModule, QueryWeights, TokenLimit};
use crate::named::Named;
use crate::nn::cost::{ComponentParameters, Growth, idle_parameters};
use crate::nn::{HeadKind, PostPoolingSpec, Symbol};
use crate::run::yes_or_no;
use crate::sys::console::{counted, thousands};
use crate::sys::terminal::escape_controls;
use crate::task::MemoryUse;

/// Width of the keys in a group of lines.
const KEY_WIDTH: usize = 17;
/// Maximum width of the lines that list symbols and names.
const PAGE_WIDTH: usize = 100;
/// Labels of a head that are named.
const MAX_LABELS: usize = 8;
/// Unused tensors that are named without `--tensors`.
const MAX_UNUSED: usize = 4;

/// A page that grows by groups of lines. Control characters are escaped.
#[derive(Default)]
struct Page {
    text: String,
}

/// A cell of a table.
enum Cell {
    /// Aligned to the left.
    Text(String),
    /// Aligned to the right.
    Number(String),
}

impl Page {
    fn push(&mut self, line: &str) {
        self.text += escape_controls(line.trim_end()).as_ref();
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.push(heading);
    }

    fn lines(&mut self, lines: Vec<(&'static str, String)>) {
        for (key, value) in lines {
            self.push(&format!("  {key:<KEY_WIDTH$} {value}"));
        }
    }

    /// Rows whose columns are aligned.
    fn table(&mut self, rows: &[Vec<Cell>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let widths = rows.iter().filter_map(|row| row.get(column)).map(Cell::width);
            widths.max().unwrap_or(0).max(if column == 0 { KEY_WIDTH } else { 0 })
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| cell.aligned(*width)).collect();
            self.push(&format!("  {}", cells.join("  ")));
        }
    }

    /// Items separated by commas, in lines of at most [`PAGE_WIDTH`] characters.
    fn list(&mut self, start: &str, items: &[String]) {
        let mut line = format!("  {start}");
        for (i, item) in items.iter().enumerate() {
            let item = if i + 1 < items.len() { format!("{item}, ") } else { item.clone() };
            if line.chars().count() + item.trim_end().chars().count() > PAGE_WIDTH {
                self.push(&line);
                line = " ".repeat(2 + start.chars().count());
            }
            line += &item;
        }
        self.push(&line);
    }
}

impl Cell {
    fn width(&self) -> usize {
        let (Cell::Text(text) | Cell::Number(text)) = self;
        text.chars().count()
    }

    fn aligned(&self, width: usize) -> String {
        match self {
            Cell::Text(text) => format!("{text:<width$}"),
            Cell::Number(text) => format!("{text:>width$}"),
        }
    }
}

fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn number(number: usize) -> Cell {
    Cell::Number(thousands(number as u64))
}

fn size(bytes: usize) -> Cell {
    Cell::Number(ByteSize(bytes as u64).display().si().to_string())
}

/// `× 6`; empty for one copy.
fn copies(copies: usize) -> Cell {
    if copies == 1 { text("") } else { text(format!("× {}", thousands(copies as u64))) }
}

/// The page. With `all_tensors` it lists all tensors of the checkpoint.
pub(super) fn page(
    examined: &Examined,
    cost: &Cost,
    files: &[ModelFile],
    all_tensors: bool,
) -> Result<String> {
    let mut page = Page::default();
    let folder = model_folder(examined);
    page.heading("Model");
    page.lines(model_lines(examined, &folder)?);
    page.heading("Encoder");
    page.lines(describe_encoder(&examined.spec));
    page.heading("Vectors");
    page.lines(vector_lines(examined, &folder));
    if let Some(head) = &examined.head {
        page.heading("Head");
        page.lines(head_lines(head));
    }
    write_parameters(&mut page, examined, cost);
    write_work(&mut page, cost);
    write_memory(&mut page, examined, cost);
    if !files.is_empty() {
        write_files(&mut page, files, &folder);
    }
    if let Some(report) = &examined.report {
        write_tensors(&mut page, report, all_tensors);
    }
    if !examined.problems.is_empty() {
        page.heading("Problems");
        examined.problems.iter().for_each(|problem| page.push(&format!("  {problem:#}")));
    }
    Ok(page.text)
}

/// The folder of the model, which is above that of the encoder in models of the first releases of
/// sentence-transformers.
fn model_folder(examined: &Examined) -> PathBuf {
    let mut folder = examined.config.path().parent().unwrap_or(Path::new(""));
    for _ in examined.modules.encoder_folder.components() {
        folder = folder.parent().unwrap_or(folder);
    }
    folder.to_owned()
}

/// A path relative to the folder of the model, if it is in there.
fn shown(path: &Path, folder: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).display().to_string()
}

fn model_lines(examined: &Examined, folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let config = &examined.config;
    let shown_weights = |weights: &String| shown(Path::new(weights), folder);
    let none = || "none".to_owned();
    let mut lines = vec![
        ("folder", if folder == Path::new("") { ".".into() } else { folder.display().to_string() }),
        ("config", shown(config.path(), folder)),
        ("model type", config.string("model_type")?.unwrap_or_default().to_owned()),
    ];
    lines.extend(config.defaults().map(|(key, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        ("absent field", format!("{key}: {value} (default of transformers)"))
    }));
    lines.extend(examined.purpose.as_ref().map(|purpose| ("task", purpose.to_string())));
    if !examined.adapters.tasks.is_empty() {
        lines.push(("adapters", examined.adapters.names()));
    }
    lines.extend(examined.adapter.as_ref().map(|adapter| {
        let merged = examined.report.as_ref().map_or(0, |report| report.merged.len());
        let task = adapter.task.as_deref().unwrap_or("the model's own");
        ("merged adapter", format!("{task}, into {}", counted(merged as u64, "tensor")))
    }));
    let backends = examined.backends.iter().map(|backend| format!("{} on {backend}", backend.dtype()));
    lines.extend([
        ("weights", examined.weights.as_ref().map_or_else(none, shown_weights)),
        ("tokenizer", describe_tokenizer(examined, folder).unwrap_or_else(none)),
        ("computes in", backends.collect::<Vec<_>>().join("; ")),
    ]);
    Ok(lines)
}

/// The tokenizer's file, algorithm and vocabulary; `None` without a file.
fn describe_tokenizer(examined: &Examined, folder: &Path) -> Option<String> {
    let file = shown(examined.tokenizer_file.as_ref()?, folder);
    let Some(tokenizer) = &examined.tokenizer else { return Some(file) };
    let vocabulary = counted(tokenizer.vocab_size() as u64, "token");
    let special = counted(tokenizer.num_special_tokens(false) as u64, "special token");
    Some(format!("{file} ({}, {vocabulary}; {special} per text)", tokenizer.algorithm()))
}

/// The limit, pooling, post-pooling modules, prompts and lowercasing, each with the file that it comes from.
fn vector_lines(examined: &Examined, folder: &Path) -> Vec<(&'static str, String)> {
    let modules = &examined.modules;
    let limit = &examined.max_length;
    let source = match &limit.file {
        Some(file) => format!("{} in {}", limit.key, shown(file, folder)),
        None => limit.key.clone(),
    };
    let pooling = match &modules.pooling {
        Some(PoolingModule { pooling, include_prompt, file, .. }) => {
            let prompt = if *include_prompt { "" } else { ", excluding prompt tokens" };
            format!("{pooling}{prompt} ({})", shown(file, folder))
        }
        None if modules.multi_vector.is_some() => "multi-vector: one vector per token".into(),
        None => {
            format!("{} (no pooling configured; the default for this model family)", examined.family.pool)
        }
    };
    let dimensions = match modules.truncate_dim.filter(|kept| *kept < examined.dimensions) {
        Some(kept) => format!("{kept}, the first of {}", examined.dimensions),
        None => examined.dimensions.to_string(),
    };
    let side = examined.truncation_side.name();
    let mut lines = vec![
        ("max length", format!("{} ({source})", counted(limit.tokens as u64, "token"))),
        ("truncation side", side.to_owned()),
        ("pooling", pooling),
    ];
    lines.extend(modules.multi_vector.iter().flat_map(multi_vector::lines));
    if let Some(QueryWeights { folder: own, is_default, .. }) = &modules.query_weights {
        let texts = if *is_default { "queries, and texts without a role" } else { "queries" };
        lines.push((
            "query weights",
            format!("{} ({texts}: fixed weights of tokens, no encoder)", shown(own, folder)),
        ));
    }
    for (key, length) in [("query length", 0), ("document length", 1)] {
        if let Some(TokenLimit { tokens, file, .. }) = &modules.role_lengths[length] {
            lines.push((key, format!("{} ({})", counted(*tokens as u64, "token"), shown(file, folder))));
        }
    }
    // A module without a folder of its own has that of the model.
    let place = |of: &Path| match shown(of, folder) {
        name if name.is_empty() => name,
        name => format!(" ({name})"),
    };
    let (before, after) = modules.post_pooling.split_at(modules.before_pooling);
    let after = after.iter().filter(|module| module.spec != PostPoolingSpec::Normalize);
    let before = before.iter().map(|module| ("before pooling", module));
    for (key, module) in before.chain(after.map(|module| ("after pooling", module))) {
        lines.push((key, format!("{}{}", module.spec, place(&module.folder))));
    }
    if !modules.dense_sizes.is_empty() {
        let sizes: Vec<String> = modules.dense_sizes.iter().map(usize::to_string).collect();
        lines.push(("dense sizes", format!("{} (--dimensions N chooses one of them)", sizes.join(", "))));
    }
    let normalize = match examined.applied_modules().last().filter(|_| examined.is_normalized()) {
        Some(module) => format!("yes{}", place(&module.folder)),
        None => yes_or_no(false),
    };
    lines.extend([("normalize", normalize), ("dimensions", dimensions)]);
    for (name, text) in &modules.prompts.texts {
        let default = if modules.prompts.default.as_ref() == Some(name) { " (default)" } else { "" };
        lines.push(("prompt", format!("{name}{default}: {text:?}")));
    }
    let lowercase = if modules.lowercase { "yes, before the tokenizer".into() } else { yes_or_no(false) };
    lines.push(("lowercase", lowercase));
    lines
}

/// The kind of the task head, its labels, what scores are, the command for it, and what it costs beside the
/// encoder.
fn head_lines(head: &ExaminedHead) -> Vec<(&'static str, String)> {
    let shown = head.labels.iter().take(MAX_LABELS).cloned().collect::<Vec<_>>().join(", ");
    let more = match head.labels.len().saturating_sub(MAX_LABELS) {
        0 => String::new(),
        more => format!(" and {} more", thousands(more as u64)),
    };
    let outputs = match head.labels.len() {
        0 if head.kind == HeadKind::LexicalWeights => ("outputs", "1 weight per token".into()),
        0 => ("vocabulary", counted(head.outputs as u64, "token")),
        _ => ("labels", format!("{}: {shown}{more}", thousands(head.outputs as u64))),
    };
    let each = if head.is_per_token { "token" } else { "text" };
    let work = format!("{} = {} per {each}", head.work, thousands(head.work.value() as u64));
    vec![
        ("kind", head.kind.name().into()),
        outputs,
        ("scores", head.scores.clone()),
        ("command", head.command.into()),
        ("parameters", format!("{}, beside those of the encoder", thousands(head.parameters as u64))),
        ("multiply-adds", work),
    ]
}

/// Parameters by component, as a formula and as a number, and the sizes in the formulas.
fn write_parameters(page: &mut Page, examined: &Examined, cost: &Cost) {
    page.heading("Parameters");
    let row = |part: &ComponentParameters| {
        let (name, formula) = (text(part.component.name()), text(part.each.to_string()));
        vec![name, formula, number(part.each.value()), copies(part.copies), number(part.total())]
    };
    let mut rows: Vec<_> = cost.components.iter().map(row).collect();
    rows.push(vec![text("total"), text(""), text(""), text(""), number(examined.count.parameters)]);
    let idle = idle_parameters(&examined.spec);
    if idle > 0 {
        let active = number(examined.count.parameters.saturating_sub(idle));
        rows.push(vec![text("active per token"), text(""), text(""), text(""), active]);
    }
    page.table(&rows);
    let symbol =
        |symbol: Symbol| format!("{} {} ({})", symbol.letter, thousands(symbol.size as u64), symbol.meaning);
    page.list("where ", &cost.symbols().into_iter().map(symbol).collect::<Vec<_>>());
}

/// The multiply-adds of one text by part.
fn write_work(page: &mut Page, cost: &Cost) {
    // The mean of static embeddings multiplies no matrix.
    if cost.total() == 0 {
        return;
    }
    let tokens = counted(cost.tokens as u64, "token");
    page.heading(&format!("Multiply-adds for one text of {tokens}"));
    let total = cost.total();
    let mut rows = Vec::new();
    for part in cost.work.iter().filter(|part| part.growth != Growth::Once) {
        let share = 100.0 * part.total() as f64 / total.max(1) as f64;
        let (name, formula) = (text(part.name), text(part.each.to_string()));
        let (each, runs) = (number(part.each.value()), copies(part.runs));
        rows.push(vec![
            name,
            formula,
            each,
            runs,
            number(part.total()),
            Cell::Number(format!("{share:.1}%")),
        ]);
    }
    rows.push(vec![text("total"), text(""), text(""), text(""), number(total)]);
    page.table(&rows);
    if let Some(windowed) = cost.windowed_attention {
        let windowed = thousands(windowed as u64);
        page.push(&format!("  within its sliding windows, attention takes {windowed} multiply-adds"));
    }
    if cost.multiply_adds(Growth::Once) > 0 {
        let once = thousands(cost.multiply_adds(Growth::Once) as u64);
        page.push(&format!("  once per model: {once} for the projections of relative embeddings"));
    }
    let within = if cost.windowed_attention.is_some() { "within its windows, " } else { "" };
    page.push(&match cost.attention_overtakes {
        Some(n) => {
            let n = thousands(n as u64);
            format!("  {within}attention takes more than the linear parts from {n} tokens on")
        }
        None => format!("  {within}attention takes less than the linear parts for every length"),
    });
}

/// Memory by compute type.
fn write_memory(page: &mut Page, examined: &Examined, cost: &Cost) {
    page.heading("Memory");
    let row = |memory: &MemoryUse| {
        let batch = ByteSize(memory.batch as u64).display().si();
        let tokens = counted(memory.batch_tokens as u64, "token");
        let batch = format!("of weights, {batch} for a batch of {tokens}");
        vec![text(memory.dtype), size(memory.weights), text(batch)]
    };
    let mut rows: Vec<_> = cost.memory.iter().map(row).collect();
    let stored = match examined.report {
        Some(_) => "in f32; they stay in the checkpoint, rows are read as tokens need them",
        None => "in f32",
    };
    rows.push(vec![text("embedding tables"), size(examined.count.table_bytes), text(stored)]);
    page.table(&rows);
}

fn write_files(page: &mut Page, files: &[ModelFile], folder: &Path) {
    page.heading("Files");
    let row = |file: &ModelFile| {
        let digest = file.digest.map_or(String::new(), |digest| format!("sha256 {digest}"));
        vec![text(shown(&file.path, folder)), size(file.bytes as usize), text(digest)]
    };
    page.table(&files.iter().map(row).collect::<Vec<_>>());
}

/// The start of the names of tensors in the tower of images, beside the text tower of CLIP or SigLIP.
const VISION_TOWER: &str = "vision_model.";

fn write_tensors(page: &mut Page, report: &TensorReport, all: bool) {
    page.heading("Tensors");
    let (used, unused) = (report.used.len(), report.unused.len());
    let counts = format!("{used} used, {unused} unused");
    let names = match unused {
        1..=MAX_UNUSED if !all => format!(": {}", report.unused.join(", ")),
        _ if !all && used > 0 => "; --tensors lists them".into(),
        _ => String::new(),
    };
    page.push(&format!("  {counts}{names}"));
    let of_images = report.unused.iter().filter(|name| name.starts_with(VISION_TOWER)).count();
    if of_images > 0 {
        page.push(&format!("  the tower of images is not read: {of_images} of the unused tensors are its"));
    }
    for problem in &report.problems {
        page.push(&format!("  problem  {problem}"));
    }
    for (name, count) in &report.not_finite {
        page.push(&format!("  not finite  {name}: {count} values are NaN or infinite"));
    }
    if !all {
        return;
    }
    for name in &report.unused {
        page.push(&format!("  unused   {name}"));
    }
    for name in &report.merged {
        page.push(&format!("  merged   {name}"));
    }
    for (name, shape, dtype) in &report.used {
        page.push(&format!("  used     {name} {shape:?} {dtype}"));
    }
}
