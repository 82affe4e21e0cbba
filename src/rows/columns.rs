//! The names of the columns that Sconce writes: those of rows, and those of tables of results.

/// The index of the record, from 0.
pub const INDEX: &str = "index";
/// The id of the record.
pub const ID: &str = "id";
/// The number of a chunk within its record.
pub const CHUNK: &str = "chunk";
/// The first character of a chunk.
pub const START: &str = "start";
/// The end of the characters of a chunk.
pub const END: &str = "end";
/// The line of the text that a chunk begins in, from 1.
pub const LINE: &str = "line";
/// The line of the text that a chunk ends in.
pub const END_LINE: &str = "end_line";
/// Encoded tokens.
pub const TOKENS: &str = "tokens";
/// Whether the text was truncated.
pub const TRUNCATED: &str = "truncated";
/// The factor of an int8 vector.
pub const SCALE: &str = "scale";
/// A vector.
pub const EMBEDDING: &str = "embedding";
/// The vectors of tokens; in array formats, those of all rows.
pub const EMBEDDINGS: &str = "embeddings";
/// The elements of a sparse vector by their tokens.
pub const WEIGHTS: &str = "weights";
/// The dimensions of the elements of a sparse vector.
pub const INDICES: &str = "indices";
/// The elements of a sparse vector.
pub const VALUES: &str = "values";
/// The query of a row.
pub const QUERY: &str = "query";
/// The id of the query of a row.
pub const QUERY_ID: &str = "query_id";
/// The text of the query of a row.
pub const QUERY_TEXT: &str = "query_text";
/// The place of a row among all that are sorted by their scores.
pub const RANK: &str = "rank";
/// A score.
pub const SCORE: &str = "score";
/// Labels with their scores.
pub const LABELS: &str = "labels";
/// Tokens for each mask.
pub const MASKS: &str = "masks";
/// Labelled parts of a text.
pub const ENTITIES: &str = "entities";
/// Parts of a text that answer a question.
pub const ANSWERS: &str = "answers";
/// The score of a text having no answer.
pub const NO_ANSWER: &str = "no_answer";
/// The hash of the record (`--append`).
pub const RECORD_HASH: &str = "record_hash";
/// The weight of a neighbour of a query.
pub const WEIGHT: &str = "weight";
/// The number of neighbours of a query.
pub const NEIGHBOURS: &str = "neighbours";
/// The weighted mean of a column over the neighbours of a query.
pub const VALUE: &str = "value";
/// The file of a row, where several are searched as one.
pub const FILE: &str = "file";
/// The first and the second row, or text, of a pair.
pub const PAIR: [&str; 2] = ["a", "b"];
/// The group of near-duplicates that a row is in.
pub const CLUSTER: &str = "cluster";
/// Whether a row is the first one of its group.
pub const KEEP: &str = "keep";

/// The columns that locate the rows of array formats whose rows are chunks, in their order.
pub const OF_CHUNKS: [&str; 6] = [INDEX, CHUNK, START, END, LINE, END_LINE];

/// The column of element `i` of a vector in csv.
pub fn element(i: usize) -> String {
    format!("e{i}")
}
