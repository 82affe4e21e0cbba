//! The commands, as clap parses them. The doc comments are the text of `-h` and `--help`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::answer::AnswerArgs;
use super::attend::AttendArgs;
use super::cache::{CacheArgs, CacheTableArgs};
use super::classify::ClassifyArgs;
use super::download::DownloadArgs;
use super::embed::EmbedArgs;
use super::fill::FillArgs;
use super::inspect::InspectArgs;
use super::merge::MergeArgs;
use super::pairs::PairsArgs;
use super::rerank::RerankArgs;
use super::search::SearchArgs;
#[cfg(feature = "serve")]
use super::serve::ServeArgs;
use super::similarity::SimilarityArgs;
use super::tag::TagArgs;
use super::verify::VerifyArgs;

/// Turn text into vectors with BERT-style encoders.
#[derive(Debug, Parser)]
#[command(name = "sconce", version, propagate_version = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Turn texts into vectors, one per text
    Embed(Box<EmbedArgs>),
    /// Score texts by their relevance to a query
    Rerank(Box<RerankArgs>),
    /// Classify texts, or pairs of texts
    Classify(Box<ClassifyArgs>),
    /// Fill the masks of texts with the tokens that a masked language model expects
    Fill(Box<FillArgs>),
    /// Find the entities in texts, such as names
    Tag(Box<TagArgs>),
    /// Find the answer to a question in texts
    Answer(Box<AnswerArgs>),
    /// Find the nearest neighbours of queries in a vector file
    Search(Box<SearchArgs>),
    /// Find the most similar pairs of rows in a vector file, or near-duplicates
    Pairs(PairsArgs),
    /// Serve models over HTTP, for clients of text-embeddings-inference, OpenAI, Cohere (rerank only), Jina
    /// and Ollama
    #[cfg(feature = "serve")]
    Serve(Box<ServeArgs>),
    /// Join the files that several runs wrote, such as shards
    Merge(MergeArgs),
    /// Print the similarities of a few texts
    Similarity(Box<SimilarityArgs>),
    /// Show what the tokens of a text attend to, as a picture, a page or an array
    Attend(Box<AttendArgs>),
    /// Show a model's configuration, its cost, and how its tensors are used
    Inspect(InspectArgs),
    /// Compare a model's vectors on this machine with reference vectors
    Verify(Box<VerifyArgs>),
    /// Download a model and print its path
    Download(DownloadArgs),
    /// List what the caches have, or remove it
    Cache(CacheArgs),
    /// List the models that run without the network
    Models(CacheTableArgs),
    /// Print a completion script for a shell
    Completions {
        /// Shell to complete for
        #[arg(long_help)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages of all commands into a directory
    #[command(hide = true)]
    Man {
        /// Existing directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}
