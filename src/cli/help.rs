//! The pages of `-h` and `--help`. `-h` has the most used options, on one screen; `--help` has all options in
//! groups, examples, the environment and the exit codes.

#[cfg(feature = "serve")]
use super::serve;
use super::{
    answer, attend, cache, classify, download, embed, fill, inspect, merge, pairs, rerank, search,
    similarity, tag, verify,
};
use clap::{Arg, ArgAction, Command};

/// The arguments on the page of `-h`, with their short descriptions.
const SHORT: &[(&str, &str)] = &[
    ("texts", "Texts [default: lines of standard input]"),
    ("input", "Files, directories or glob patterns; - is standard input"),
    ("input_format", "Input format [default: by file extension]"),
    ("text_field", "Fields or columns of the text [default: text]"),
    ("keep", "Fields or columns to copy to the output"),
    ("output", "Output file [default: standard output]"),
    ("output_format", "Output format [default: by file extension, else jsonl]"),
    ("pooling", "cls, mean, max, none, … [default: from the model's files]"),
    ("prompt_name", "Name of a prompt in the model's files to put before each text"),
    ("max_length", "Maximum tokens per text [default: the model's limit]"),
    ("on_long", "Longer texts: truncate, error, skip, mean [default: truncate]"),
    ("chunk", "One row per chunk of at most TOKENS tokens"),
    ("on_long_pair", "Longer texts: truncate, error, skip [default: truncate]"),
    ("query", "Query that all texts are scored for"),
    ("rerank_queries", "File of queries; rows tell their query"),
    ("record_query_field", "Field or column of the query"),
    ("top_rows", "Write the K best rows per query, sorted; 0: all"),
    ("top_labels", "Write the K best labels; 0: all [default: 1]"),
    ("top_tokens", "Write the K best tokens for each mask; 0: all [default: 5]"),
    ("raw", "Write logits instead of scores"),
    ("aggregation", "Join tokens: none, simple, first, average, max [default: simple]"),
    ("window_stride", "Tag longer texts in windows that share N tokens"),
    ("question", "Question that is answered from each text"),
    ("record_question_field", "Field or column of the question of each record"),
    ("context", "Text with the answer"),
    ("top_answers", "Write the K best answers [default: 1]"),
    ("max_answer_length", "Maximum tokens of an answer [default: 15]"),
    ("window_length", "Maximum tokens per question and text [default: the model's limit]"),
    ("answer_stride", "Tokens that windows of longer texts share [default: 128]"),
    ("on_error", "Records that cannot be read: stop or skip [default: stop]"),
    ("resume", "Resume an interrupted run"),
    ("restart", "Discard the rows of an interrupted run"),
    ("searched_vectors", "Vector file, of embed or other software"),
    ("searched", "Directory or files of texts, or vector files of embed or other software"),
    ("vector_field", "Column or field of the vectors [default: embedding]"),
    ("query_texts", "What to search for [default: lines of standard input]"),
    ("lines_around", "Print the lines of each chunk of a text, and N lines around them"),
    ("queries", "File of queries"),
    ("query_vectors", "Vector file of queries; no model is loaded"),
    ("k", "Maximum neighbours per query [default: 10]"),
    ("least_score", "Minimum score of a neighbour"),
    ("search_metric", "cosine, dot or euclidean [default: the model's similarity function]"),
    ("rescore", "The same vectors in f32, to rank the best candidates again"),
    ("weights", "Weights of the neighbours: softmax or uniform"),
    ("shown_columns", "Columns to show [default: all]"),
    ("table_output", "Output file [default: standard output]"),
    ("auto_table_format", "text, jsonl, csv or parquet [default: by file extension, else text]"),
    ("compared_texts", "Texts to compare, each with all others"),
    ("metric", "cosine, dot, euclidean or manhattan [default: from the model's files]"),
    ("table_format", "Output format [default: text]"),
    ("against", "File of reference vectors"),
    ("reference_texts", "File of the texts [default: the file of the vectors]"),
    ("max_difference", "Maximum absolute difference of an element"),
    ("min_cosine", "Minimum cosine of a vector with its reference"),
    ("min_neighbours", "Minimum share of the same nearest neighbours"),
    ("model", "Model directory, or model id on the Hugging Face Hub"),
    ("model_or_id", "Model directory, or model id on the Hugging Face Hub"),
    ("download_id", "Model id on the Hugging Face Hub"),
    ("pairs_metric", "cosine, dot or euclidean [default: cosine]"),
    ("clusters", "Write the cluster of every row, and which row to keep"),
    ("columns", "Columns of the vector file to copy to the output"),
    ("attended_text", "Text to encode"),
    ("pair", "Second text of a pair"),
    ("merged_output", "Output file; - is standard output"),
    ("merged_files", "Files of one format, in order"),
    ("attention_output", "svg, png, html, npy, safetensors or json [default: a picture on standard output]"),
    ("layer", "Layer, from 0 [default: all; the last without --output]"),
    ("head", "Head, from 0 [default: all; their mean without --output]"),
    ("mean", "Mean over the heads"),
    ("rollout", "Attention rollout over the layers"),
    ("mixing", "Talking heads: before or after mixing [default: after]"),
    ("json", "Print JSON"),
    ("tokens", "Show the cost of a text of N tokens [default: the model's limit]"),
    ("tensors", "List all tensors of the checkpoint"),
    ("device", "Device to run on [default: auto]"),
    ("dtype", "Matrix products in f32, bf16, f16 or int8 [default: f32]"),
    ("quiet", "Print only warnings and errors"),
    ("clear", "Remove entries: weights, texts, digests, models [default: all but models]"),
    ("older_than", "Only entries that were not used for this number of days"),
    ("shell", "Shell to complete for"),
    ("help", "Print this page; --help has all options and examples"),
];

/// The headings of `--help` with their arguments. Arguments without a heading are listed under `Options`.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Input",
        &[
            "input",
            "queries",
            "query_vectors",
            "queries_format",
            "query_field",
            "query_id_field",
            "on_long_query",
            "against",
            "reference_texts",
            "input_format",
            "delimiter",
            "quote",
            "text_field",
            "text_separator",
            "pair_field",
            "query",
            "rerank_queries",
            "record_query_field",
            "question",
            "record_question_field",
            "context",
            "id_field",
            "keep",
            "include",
            "exclude",
            "no_ignore",
            "are_texts",
            "searched_include",
            "searched_exclude",
            "searched_no_ignore",
            "searched_chunk",
            "searched_chunk_overlap",
            "texts_cache",
            "no_cache",
            "limit",
            "shard",
            "skip_empty",
            "on_null",
            "on_error",
        ],
    ),
    (
        "Neighbours",
        &[
            "k",
            "least_score",
            "search_metric",
            "rescore",
            "rescore_multiplier",
            "weights",
            "temperature",
            "value_field",
            "shown_columns",
            "pairs_metric",
            "top_k",
            "max_pairs",
            "clusters",
            "columns",
        ],
    ),
    (
        "Output",
        &[
            "output",
            "output_format",
            "table_output",
            "table_format",
            "auto_table_format",
            "dry_run",
            "vector_column",
            "lines_around",
            "output_dtype",
            "append",
            "resume",
            "restart",
            "stats",
        ],
    ),
    (
        "Vectors",
        &[
            "pooling",
            "normalize",
            "no_normalize",
            "dimensions",
            "prompt",
            "prompt_name",
            "role",
            "token_pooling",
            "max_length",
            "truncation_side",
            "on_long",
            "chunk",
            "chunk_overlap",
            "chunk_late",
        ],
    ),
    ("Scores", &["top_rows", "top_labels", "top_tokens", "raw", "truncation", "on_long_pair"]),
    (
        "Spans",
        &[
            "aggregation",
            "window_stride",
            "top_answers",
            "max_answer_length",
            "window_length",
            "answer_stride",
        ],
    ),
    ("Bounds", &["max_difference", "min_cosine", "min_neighbours"]),
    ("Hardware", &["batch_tokens"]),
];

const ENVIRONMENT: &str = "\
Environment:
  SCONCE_MODEL             default of --model
  SCONCE_ISA               CPU instruction set: portable, avx2, avx512, avx512-vnni, avx512-bf16, amx,
                           neon, neon-dotprod
  SCONCE_CACHE             directory of packed weights, digests and vectors [default: ~/.cache/sconce]
  HF_HOME, HF_HUB_CACHE    location of the model cache
  HF_ENDPOINT              URL of the Hub or of a mirror
  HF_TOKEN, HF_TOKEN_PATH  token for private and gated models
  HF_HUB_OFFLINE           1: do not use the network; TRANSFORMERS_OFFLINE, too
  HTTPS_PROXY, NO_PROXY    proxy of downloads, and hosts without it
  SSL_CERT_FILE            certificate authorities, for a hub or a proxy with one of your own
  NO_COLOR                 disable colors";

const EXIT_CODES: &str = "\
Exit codes:
  0 success    1 error    2 wrong usage    3 success, but records were skipped    130 interrupted";

/// Sets the help of a command and its subcommands: the page of `-h` if `is_short`, else that of `--help`.
pub(super) fn with_help(command: Command, is_short: bool) -> Command {
    let command = command.after_help("Run 'sconce COMMAND -h' for the options of a command.");
    let command = command.after_long_help(format!("{ENVIRONMENT}\n\n{EXIT_CODES}"));
    let pages = [
        ("embed", embed::EXAMPLES),
        ("rerank", rerank::EXAMPLES),
        ("classify", classify::EXAMPLES),
        ("fill", fill::EXAMPLES),
        ("tag", tag::EXAMPLES),
        ("answer", answer::EXAMPLES),
        ("search", search::EXAMPLES),
        #[cfg(feature = "serve")]
        ("serve", serve::EXAMPLES),
        ("pairs", pairs::EXAMPLES),
        ("similarity", similarity::EXAMPLES),
        ("attend", attend::EXAMPLES),
        ("inspect", inspect::EXAMPLES),
        ("merge", merge::EXAMPLES),
        ("verify", verify::EXAMPLES),
        ("download", download::EXAMPLES),
        ("cache", cache::EXAMPLES),
        ("models", cache::MODELS_EXAMPLES),
        ("completions", ""),
    ];
    pages.into_iter().fold(command, |command, (name, examples)| {
        command.mut_subcommand(name, |page| {
            let page = page.disable_help_flag(true).arg(help_flag());
            let long_help = format!("{examples}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}");
            let page = page.after_long_help(long_help.trim_start().to_owned());
            if is_short { page.mut_args(shorten) } else { page.mut_args(group) }
        })
    })
}

/// Replaces clap's own help flag, whose description does not mention the two pages.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print help; -h prints only the most used options")
}

/// Puts an argument of the `--help` page under its heading.
fn group(arg: Arg) -> Arg {
    match GROUPS.iter().find(|(_, ids)| ids.contains(&arg.get_id().as_str())) {
        Some((heading, _)) => arg.help_heading(*heading),
        None => arg,
    }
}

/// Gives an argument its short description on the page of `-h`, or hides it.
fn shorten(arg: Arg) -> Arg {
    match SHORT.iter().find(|(id, _)| *id == arg.get_id().as_str()) {
        Some((_, description)) => {
            let arg = arg.help(*description).help_heading(None::<&'static str>);
            if arg.get_action().takes_values() {
                arg.hide_default_value(true).hide_possible_values(true).hide_env(true)
            } else {
                arg
            }
        }
        None => arg.hide_short_help(true),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{GROUPS, SHORT, with_help};
    use crate::cli::command::Cli;

    #[test]
    fn both_pages_are_valid_and_name_only_arguments_that_exist() {
        for is_short in [true, false] {
            with_help(Cli::command(), is_short).debug_assert();
        }
        let command = with_help(Cli::command(), false);
        let ids: Vec<&str> = command
            .get_subcommands()
            .flat_map(|page| page.get_arguments())
            .map(|arg| arg.get_id().as_str())
            .collect();
        let named = SHORT.iter().map(|(id, _)| id).chain(GROUPS.iter().flat_map(|(_, ids)| *ids));
        for id in named {
            assert!(ids.contains(id), "no argument {id}");
        }
        for page in command.get_subcommands().filter(|page| !page.is_hide_set()) {
            assert!(page.get_after_long_help().is_some(), "no examples of {}", page.get_name());
        }
    }
}
