//! Equal texts: the rows of those that were planned before, which need not be encoded again.

use std::collections::HashMap;

use super::wave::SharedRows;

/// Bytes of a text in the table beside the content of its rows: its key, and what the rows consist of beside that.
const TEXT_BYTES: usize = 256;

/// The rows of texts that were planned, by their keys: all of the present wave, and of earlier ones as many as memory allows.
pub(super) struct Repeats {
    /// The texts of the present wave.
    wave: HashMap<u128, Text>,
    /// Texts of earlier waves.
    earlier: HashMap<u128, usize>,
    /// Their keys and rows.
    texts: Vec<(u128, Text)>,
    /// Bytes of the rows of earlier waves, and their maximum.
    bytes: usize,
    max_bytes: usize,
    /// The state of the generator that chooses a text to leave out.
    random: u64,
}

/// A text that was planned.
struct Text {
    rows: SharedRows,
    /// Size in bytes, with its rows.
    bytes: usize,
}

impl Repeats {
    /// No texts yet. Those of earlier waves may take `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Self {
        let (wave, earlier, texts) = (HashMap::new(), HashMap::new(), Vec::new());
        Repeats { wave, earlier, texts, bytes: 0, max_bytes, random: 1 }
    }

    /// The rows of a text that was planned.
    pub(super) fn find(&self, key: u128) -> Option<SharedRows> {
        let earlier = || self.earlier.get(&key).map(|index| &self.texts[*index].1);
        self.wave.get(&key).or_else(earlier).map(|text| text.rows.clone())
    }

    /// Adds a text of the present wave, whose rows hold so many bytes.
    pub(super) fn add(&mut self, key: u128, rows: SharedRows, row_bytes: usize) {
        self.wave.insert(key, Text { rows, bytes: row_bytes + TEXT_BYTES });
    }

    /// Ends the wave. Of texts that memory has no room for, any are left out: whether the texts of an input repeat soon or late, some are found.
    pub(super) fn end_wave(&mut self) {
        for (key, text) in self.wave.drain() {
            if text.bytes > self.max_bytes {
                continue;
            }
            self.bytes += text.bytes;
            self.earlier.insert(key, self.texts.len());
            self.texts.push((key, text));
        }
        while self.bytes > self.max_bytes {
            self.remove_any();
        }
    }

    /// Removes one of the texts of earlier waves.
    fn remove_any(&mut self) {
        // Xorshift (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let index = (self.random % self.texts.len() as u64) as usize;
        let (key, text) = self.texts.swap_remove(index);
        self.earlier.remove(&key);
        if let Some((moved, _)) = self.texts.get(index) {
            self.earlier.insert(*moved, index);
        }
        self.bytes -= text.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> SharedRows {
        SharedRows::default()
    }

    #[test]
    fn texts_of_the_present_wave_are_always_found() {
        let mut repeats = Repeats::new(0);
        (0..100).for_each(|key| repeats.add(key, rows(), 1 << 20));
        assert!((0..100).all(|key| repeats.find(key).is_some()));
        repeats.end_wave();
        assert!((0..100).all(|key| repeats.find(key).is_none()));
    }

    #[test]
    fn as_many_earlier_texts_are_found_as_memory_allows() {
        let mut repeats = Repeats::new(100 * (TEXT_BYTES + 1000));
        let added: Vec<SharedRows> = (0..1000).map(|_| rows()).collect();
        for (key, rows) in added.iter().enumerate() {
            repeats.add(key as u128, rows.clone(), 1000);
            if key % 7 == 0 {
                repeats.end_wave();
            }
        }
        repeats.end_wave();
        let found: Vec<(usize, SharedRows)> =
            (0..1000).filter_map(|key| Some((key, repeats.find(key as u128)?))).collect();
        assert_eq!(found.len(), 100);
        assert!(found.iter().all(|(key, rows)| std::sync::Arc::ptr_eq(rows, &added[*key])));
        assert!(found.iter().any(|(key, _)| *key < 900), "not only the last are kept");
        assert_eq!(repeats.bytes, repeats.max_bytes);
    }
}
