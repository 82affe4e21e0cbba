//! SHA-256: the one digest of files, records and texts. It is in this room, and not lower, because all that
//! use it may use the room, which needs only `sys`.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest; 64 lowercase hexadecimal digits as text and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digest of all bytes of a reader.
    pub fn of_reader(reader: impl Read) -> io::Result<Self> {
        let mut hasher = Hasher::default();
        hasher.add_all(reader)?;
        Ok(hasher.digest())
    }

    /// The first 128 bits.
    pub fn first_bits(&self) -> u128 {
        self.0.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MALFORMED: &str = "a SHA-256 has 64 hexadecimal digits";
        let mut digest = [0; 32];
        if text.len() != 2 * digest.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(MALFORMED);
        }
        for (i, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| MALFORMED)?;
        }
        Ok(Digest(digest))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Computes the digest of bytes that arrive in parts.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds bytes.
    pub fn add(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.update(bytes);
    }

    /// Adds bytes after their number, so that the digest depends on where each part ends.
    pub fn add_part(&mut self, bytes: impl AsRef<[u8]>) {
        self.add((bytes.as_ref().len() as u64).to_le_bytes());
        self.add(bytes);
    }

    /// Adds all bytes of a reader, and returns their number.
    pub fn add_all(&mut self, mut reader: impl Read) -> io::Result<u64> {
        io::copy(&mut reader, &mut self.0)
    }

    /// The digest of all bytes so far.
    pub fn digest(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::{Digest, Hasher};

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_hexadecimal_in_json() {
        let digest = Digest::of("abc");
        assert_eq!(
            (digest.to_string(), digest.first_bits()),
            (ABC.into(), 0xba7816bf8f01cfea414140de5dae2223)
        );
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, format!("\"{ABC}\""));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        for wrong in
            [json.replace("ba", "bg"), json.replace("ba", "+a"), json.replace("ad\"", "\""), "\"ä\"".into()]
        {
            assert!(serde_json::from_str::<Digest>(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_have_the_digest_of_the_whole() {
        let mut hasher = Hasher::default();
        hasher.add("a");
        assert_eq!(hasher.add_all(&b"bc"[..]).unwrap(), 2);
        assert_eq!(hasher.digest(), Digest::of("abc"));
        assert_eq!(Digest::of_reader(&b"abc"[..]).unwrap(), Digest::of("abc"));
    }

    #[test]
    fn a_part_follows_its_length() {
        let mut hasher = Hasher::default();
        hasher.add_part("abc");
        assert_eq!(hasher.digest(), Digest::of(b"\x03\0\0\0\0\0\0\0abc"));
    }
}
