//! The file of a SentencePiece model: a protocol buffer with the pieces, and with the settings that they were
//! trained with. Those of white space and of unknown bytes (`add_dummy_prefix`, `remove_extra_whitespaces`,
//! `byte_fallback`) are not read: tokenizer classes have their own, and transformers takes those.

use std::collections::HashSet;

use super::protobuf::{Field, fields};

/// Maximum pieces of a model; multilingual models have up to a million.
const MAX_PIECES: usize = 1 << 21;
/// Maximum bytes of a piece: tokenizers look for pieces of every length at each position of a text.
pub(super) const MAX_PIECE_BYTES: usize = 256;

/// What a SentencePiece file says.
#[derive(Debug, PartialEq)]
pub(super) struct SentencePiece<'a> {
    /// The pieces, in the order of their ids.
    pub pieces: Vec<Piece<'a>>,
    /// How texts are split into pieces.
    pub algorithm: Algorithm,
    /// The id of the piece for what no other piece has.
    pub unk_id: usize,
    /// The map of characters of its normalizer, see [`character_map`](super::character_map); may be empty.
    pub character_map: &'a [u8],
}

/// A string that texts are split into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Piece<'a> {
    pub text: &'a str,
    /// The log probability of a Unigram model; that of a BPE model falls with the id.
    pub score: f32,
    pub kind: PieceKind,
}

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// A part of texts.
    Normal,
    /// The piece for what no other piece has.
    Unknown,
    /// A special token.
    Control,
    /// A string that is never split.
    UserDefined,
    /// A byte, such as `<0x0A>`.
    Byte,
}

/// How texts are split into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
}

impl Algorithm {
    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Algorithm::Unigram => "Unigram",
            Algorithm::Bpe => "BPE",
        }
    }
}

/// Why a file is not read.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    /// It is no SentencePiece model, or not a complete one.
    Damaged(String),
    /// It has what is not supported.
    Unsupported(String),
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Damaged(reason.into()))
}

fn wrong_type<T>(number: u64, message: &str) -> Result<T, Refusal> {
    damaged(format!("field {number} of {message} has another type"))
}

fn unsupported<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Unsupported(reason.into()))
}

impl<'a> SentencePiece<'a> {
    /// Parses the bytes of a file.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let mut model = SentencePiece {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            unk_id: 0,
            character_map: &[],
        };
        let mut texts = HashSet::new();
        for field in fields(bytes) {
            match field.map_err(Refusal::Damaged)? {
                (1, Field::Bytes(bytes)) => {
                    let id = model.pieces.len();
                    let piece = piece(id, bytes)?;
                    if !texts.insert(piece.text) {
                        return damaged(format!("piece {id} is {:?} again", piece.text));
                    }
                    if id == MAX_PIECES {
                        return unsupported(format!("it has more than {MAX_PIECES} pieces"));
                    }
                    if piece.kind == PieceKind::Unknown {
                        model.unk_id = id;
                    }
                    model.pieces.push(piece);
                }
                (2, Field::Bytes(bytes)) => model.set_trainer(bytes)?,
                (3, Field::Bytes(bytes)) => model.set_normalizer(bytes)?,
                (number @ 1..=3, _) => return wrong_type(number, "the model"),
                _ => {}
            }
        }
        match model.pieces.iter().filter(|piece| piece.kind == PieceKind::Unknown).count() {
            1 => Ok(model),
            _ if model.pieces.is_empty() => damaged("it has no pieces"),
            count => damaged(format!("{count} of its pieces are for unknown characters, and one should be")),
        }
    }

    /// Reads the message with the settings of the training.
    fn set_trainer(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        for field in fields(bytes) {
            match field.map_err(Refusal::Damaged)? {
                (3, Field::Integer(model_type)) => {
                    self.algorithm = match model_type {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::Bpe,
                        3 => return unsupported("its pieces are words"),
                        4 => return unsupported("its pieces are characters"),
                        other => return damaged(format!("it has the unknown model type {other}")),
                    }
                }
                (24, Field::Integer(flag)) if flag != 0 => {
                    return unsupported("it has white space after words (treat_whitespace_as_suffix)");
                }
                (number @ (3 | 24), Field::Fixed32(_) | Field::Bytes(_) | Field::Other) => {
                    return wrong_type(number, "the training settings");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the message of the normalizer.
    fn set_normalizer(&mut self, bytes: &'a [u8]) -> Result<(), Refusal> {
        for field in fields(bytes) {
            match field.map_err(Refusal::Damaged)? {
                (2, Field::Bytes(map)) => self.character_map = map,
                (5, Field::Integer(0)) => {
                    return unsupported("it has spaces in pieces as they are (escape_whitespaces)");
                }
                (5, Field::Integer(_)) => {}
                (number @ (2 | 5), _) => return wrong_type(number, "the normalizer"),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads the message of a piece.
fn piece(id: usize, bytes: &[u8]) -> Result<Piece<'_>, Refusal> {
    let mut piece = Piece { text: "", score: 0.0, kind: PieceKind::Normal };
    for field in fields(bytes) {
        match field.map_err(Refusal::Damaged)? {
            (1, Field::Bytes(text)) => match str::from_utf8(text) {
                Ok(text) => piece.text = text,
                Err(_) => return damaged(format!("piece {id} is not UTF-8")),
            },
            (2, Field::Fixed32(bits)) => piece.score = f32::from_bits(bits),
            (3, Field::Integer(kind)) => {
                piece.kind = match kind {
                    1 => PieceKind::Normal,
                    2 => PieceKind::Unknown,
                    3 => PieceKind::Control,
                    4 => PieceKind::UserDefined,
                    5 => return unsupported(format!("piece {id} has the type UNUSED")),
                    6 => PieceKind::Byte,
                    other => return damaged(format!("piece {id} has the unknown type {other}")),
                }
            }
            (number @ 1..=3, _) => return wrong_type(number, &format!("piece {id}")),
            _ => {}
        }
    }
    match piece.text.len() {
        0 => damaged(format!("piece {id} is empty")),
        length if length > MAX_PIECE_BYTES => {
            unsupported(format!("piece {id} has {length} bytes, and at most {MAX_PIECE_BYTES} are supported"))
        }
        _ if !piece.score.is_finite() => damaged(format!("the score of piece {id} is {}", piece.score)),
        _ => Ok(piece),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A field with an integer.
    fn flag(number: u64, value: u64) -> Vec<u8> {
        [integer(number << 3), integer(value)].concat()
    }

    /// A field with bytes.
    fn bytes(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        [&integer(number << 3 | 2), &integer(value.len() as u64), value].concat()
    }

    /// A field with four bytes.
    fn float(number: u64, value: f32) -> Vec<u8> {
        [&integer(number << 3 | 5)[..], &value.to_le_bytes()].concat()
    }

    /// A piece of a model.
    fn piece(text: &str, kind: u64) -> Vec<u8> {
        bytes(1, [bytes(1, text), float(2, -1.5), flag(3, kind)].concat())
    }

    #[test]
    fn a_file_is_parsed() {
        let eight_bytes = [&integer(9 << 3 | 1)[..], &[7; 8]].concat();
        let file = [
            piece("<s>", 3),
            piece("<unk>", 2),
            bytes(1, bytes(1, "é")),
            piece("<n>", 4),
            piece("<0x0A>", 6),
            // Settings that do not count, fields of later releases, and a message in two parts.
            bytes(2, [flag(3, 2), flag(35, 1), flag(40, 5), bytes(45, "<unk>"), flag(24, 0)].concat()),
            bytes(3, [bytes(1, "own"), bytes(2, "map"), flag(3, 0), flag(5, 1)].concat()),
            bytes(4, bytes(1, "samples")),
            eight_bytes,
            bytes(200, "later"),
            bytes(2, flag(4, 9)),
        ];
        let piece = |text, score, kind| Piece { text, score, kind };
        let expected = SentencePiece {
            pieces: vec![
                piece("<s>", -1.5, PieceKind::Control),
                piece("<unk>", -1.5, PieceKind::Unknown),
                piece("é", 0.0, PieceKind::Normal),
                piece("<n>", -1.5, PieceKind::UserDefined),
                piece("<0x0A>", -1.5, PieceKind::Byte),
            ],
            algorithm: Algorithm::Bpe,
            unk_id: 1,
            character_map: b"map",
        };
        assert_eq!(SentencePiece::parse(&file.concat()), Ok(expected));
    }

    #[test]
    fn damage_and_what_is_not_supported_are_named() {
        let unk = || piece("<unk>", 2);
        let with = |rest: Vec<u8>| [unk(), rest].concat();
        let in_piece = |field: Vec<u8>| with(bytes(1, [bytes(1, "a"), field].concat()));
        let trainer = |field: Vec<u8>| with(bytes(2, field));
        let normalizer = |field: Vec<u8>| with(bytes(3, field));
        let long = "a".repeat(MAX_PIECE_BYTES + 1);
        let damaged = [
            (vec![], "it has no pieces"),
            (piece("a", 1), "0 of its pieces are for unknown characters, and one should be"),
            (with(piece("b", 2)), "2 of its pieces are for unknown characters, and one should be"),
            (with(unk()), "piece 1 is \"<unk>\" again"),
            (with(piece("", 1)), "piece 1 is empty"),
            (with(bytes(1, "")), "piece 1 is empty"),
            (with(bytes(1, bytes(1, b"\xff"))), "piece 1 is not UTF-8"),
            (in_piece(float(2, f32::NAN)), "the score of piece 1 is NaN"),
            (in_piece(float(2, f32::NEG_INFINITY)), "the score of piece 1 is -inf"),
            (in_piece(flag(3, 7)), "piece 1 has the unknown type 7"),
            (in_piece(flag(2, 1)), "field 2 of piece 1 has another type"),
            (in_piece(bytes(3, "x")), "field 3 of piece 1 has another type"),
            (with(flag(1, 1)), "field 1 of the model has another type"),
            (trainer(flag(3, 9)), "it has the unknown model type 9"),
            (trainer(bytes(3, "x")), "field 3 of the training settings has another type"),
            (trainer(float(24, 1.0)), "field 24 of the training settings has another type"),
            (normalizer(flag(2, 1)), "field 2 of the normalizer has another type"),
            (normalizer(bytes(5, "x")), "field 5 of the normalizer has another type"),
            (with(vec![0x0a, 5, 1]), "a field of 5 bytes has only 1"),
            (with(vec![0x0a]), "it ends within an integer"),
            (with(vec![0x15, 0, 0]), "it ends within a number"),
            (with(vec![0x09, 0, 0]), "a field of 8 bytes has only 2"),
            (with(vec![0x0b]), "a field has the unknown wire type 3"),
            (with(vec![0x02, 0]), "a field has the number 0"),
            (with([&[0xff; 10][..], &[1]].concat()), "an integer has more than 64 bits"),
            (
                with([&[0x0a], &[0xff; 9][..], &[1]].concat()),
                "a field of 18446744073709551615 bytes has only 0",
            ),
        ];
        for (file, reason) in damaged {
            assert_eq!(SentencePiece::parse(&file), Err(Refusal::Damaged(reason.into())));
        }
        let unsupported = [
            (with(piece("b", 5)), "piece 1 has the type UNUSED"),
            (with(piece(&long, 1)), "piece 1 has 257 bytes, and at most 256 are supported"),
            (trainer(flag(3, 3)), "its pieces are words"),
            (trainer(flag(3, 4)), "its pieces are characters"),
            (trainer(flag(24, 1)), "it has white space after words (treat_whitespace_as_suffix)"),
            (normalizer(flag(5, 0)), "it has spaces in pieces as they are (escape_whitespaces)"),
        ];
        for (file, reason) in unsupported {
            assert_eq!(SentencePiece::parse(&file), Err(Refusal::Unsupported(reason.into())));
        }
        assert!(SentencePiece::parse(&with(piece(&long[1..], 1))).is_ok());
    }
}
