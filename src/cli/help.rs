//! What `-h` and `--help` show: `-h` the options that most people use, on one screen; `--help` all of them in groups, with
//! examples, the environment and the exit codes.

use clap::{Arg, ArgAction, Command};

/// The options that `-h` shows, each in a few words.
const SHORT: &[(&str, &str)] = &[
    ("texts", "Texts to embed [default: lines of standard input]"),
    ("input", "Files, folders or patterns to read; - is standard input"),
    ("input_format", "Input format [default: by file extension]"),
    ("text_field", "Field of the text [default: text]"),
    ("keep", "Fields to carry through to the output"),
    ("output", "Output file [default: standard output]"),
    ("output_format", "Output format [default: by file extension]"),
    ("pooling", "cls, mean, max, none, … [default: as the model's files say]"),
    ("prompt_name", "Prompt of the model to put before each text"),
    ("max_length", "Longest text in tokens [default: the model's own limit]"),
    ("on_long", "Longer texts: truncate, error, skip or mean [default: truncate]"),
    ("chunk", "One row per chunk of at most TOKENS tokens"),
    ("on_error", "Records that cannot be read: stop or skip [default: stop]"),
    ("resume", "Resume an interrupted run"),
    ("restart", "Drop what an interrupted run left"),
    ("model", "Folder of a model, or an id on the Hugging Face hub"),
    ("model_or_id", "Folder of a model, or an id on the Hugging Face hub"),
    ("download_id", "Id on the Hugging Face hub"),
    ("json", "Print JSON"),
    ("device", "Where the encoder runs [default: auto]"),
    ("dtype", "Precision of matrix products: f32, bf16, f16 or int8 [default: f32]"),
    ("quiet", "Print only warnings and errors"),
    ("shell", "The shell"),
    ("help", "Print this page; --help has all options and examples"),
];

/// The groups of `--help`; options of none stand under `Options`.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Input",
        &[
            "input",
            "input_format",
            "text_field",
            "pair_field",
            "id_field",
            "keep",
            "include",
            "exclude",
            "limit",
            "skip_empty",
            "on_error",
        ],
    ),
    ("Output", &["output", "output_format", "output_dtype", "resume", "restart", "append", "stats"]),
    (
        "Vectors",
        &[
            "pooling",
            "normalize",
            "no_normalize",
            "dimensions",
            "prompt",
            "prompt_name",
            "max_length",
            "truncation_side",
            "on_long",
            "chunk",
            "chunk_overlap",
            "chunk_late",
        ],
    ),
    ("Machine", &["batch_tokens"]),
];

const EMBED_EXAMPLES: &str = "\
Examples:
  sconce embed \"A lamp in the window\"                     a text to a row of JSON
  sconce embed -i corpus.jsonl -o corpus.parquet          a file to a file
  sconce embed -i docs --input-format files -o docs.npy   each file of a folder is a text
  sconce embed -i docs --input-format files --chunk 128   each file in chunks; a row per chunk
  sconce embed -m BAAI/bge-small-en-v1.5 < lines.txt      another model; a text per line
  sconce embed -i corpus.jsonl -o corpus.parquet --resume the rest of an interrupted run";

const INSPECT_EXAMPLES: &str = "\
Examples:
  sconce inspect                           the default model
  sconce inspect BAAI/bge-small-en-v1.5    an id on the hub
  sconce inspect ./model --json            a folder, for another program";

const DOWNLOAD_EXAMPLES: &str = "\
Examples:
  sconce download BAAI/bge-small-en-v1.5
  sconce download intfloat/e5-small-v2 --revision main";

const ENVIRONMENT: &str = "\
Environment:
  SCONCE_MODEL            the model, where --model does not name one
  SCONCE_ISA              instruction set: portable, avx2, avx512, avx512-vnni, avx512-bf16, neon
  HF_HOME, HF_HUB_CACHE   where models are cached
  HF_ENDPOINT             the hub, or a mirror of it
  HF_TOKEN, HF_TOKEN_PATH token for private and gated models
  HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE   1: never use the network
  NO_COLOR                no colors";

const EXIT_CODES: &str = "\
Exit codes:
  0 done    1 failed    2 wrong usage    3 done, but records were skipped    130 interrupted";

/// Gives a command its help; `short` if it is `-h` that was typed.
pub fn with_help(command: Command, short: bool) -> Command {
    let command = command.after_help("See 'sconce COMMAND -h' for the options of a command.");
    let command = command.after_long_help(format!("{ENVIRONMENT}\n\n{EXIT_CODES}"));
    let pages = [
        ("embed", EMBED_EXAMPLES),
        ("inspect", INSPECT_EXAMPLES),
        ("download", DOWNLOAD_EXAMPLES),
        ("completions", ""),
    ];
    pages.into_iter().fold(command, |command, (name, examples)| {
        command.mut_subcommand(name, |page| {
            let page = page.disable_help_flag(true).arg(help_flag());
            let more = format!("{examples}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}");
            let page = page.after_long_help(more.trim_start().to_owned());
            if short { page.mut_args(shorten) } else { page.mut_args(group) }
        })
    })
}

/// The flag that clap would add, in words that say where the rest is.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print help; -h shows the most used options only")
}

/// Puts an argument into its group.
fn group(arg: Arg) -> Arg {
    match GROUPS.iter().find(|(_, ids)| ids.contains(&arg.get_id().as_str())) {
        Some((heading, _)) => arg.help_heading(*heading),
        None => arg,
    }
}

/// Puts an argument onto the short page in a few words, or leaves it off.
fn shorten(arg: Arg) -> Arg {
    match SHORT.iter().find(|(id, _)| *id == arg.get_id().as_str()) {
        Some((_, words)) => {
            let arg = arg.help(*words).help_heading(None::<&'static str>);
            arg.hide_default_value(true).hide_possible_values(true).hide_env(true)
        }
        None => arg.hide_short_help(true),
    }
}
