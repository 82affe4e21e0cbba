//! Equal texts: the rows of those that were planned before, which need not be encoded again.

use std::collections::HashMap;
use std::mem;

use super::wave::SharedRows;

/// Bytes of a text in the table beside the content of its rows: its key, and what the rows consist of beside
/// that.
const TEXT_BYTES: usize = 256;

/// The rows of texts that were planned, by their keys: all of the present wave, and of earlier waves the
/// latest that memory allows. Those are in two generations, the older of which is left out as a whole, so
/// that its memory is free in one piece.
pub(super) struct Repeats {
    /// The texts of the present wave.
    wave: Texts,
    /// Those of the waves before it.
    young: Texts,
    /// Those of still earlier waves.
    old: Texts,
    /// Maximum bytes of a generation.
    max_bytes: usize,
}

/// Texts with their rows.
#[derive(Default)]
struct Texts {
    rows: HashMap<u128, SharedRows>,
    /// Size in bytes, with the rows.
    bytes: usize,
}

impl Repeats {
    /// No texts yet. Those of earlier waves may take `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Self {
        let (wave, young, old) = Default::default();
        Repeats { wave, young, old, max_bytes: max_bytes / 2 }
    }

    /// The rows of a text that was planned.
    pub(super) fn find(&self, key: u128) -> Option<SharedRows> {
        let mut texts = [&self.wave, &self.young, &self.old].into_iter();
        texts.find_map(|texts| texts.rows.get(&key)).cloned()
    }

    /// Adds a text of the present wave, whose rows hold so many bytes.
    pub(super) fn add(&mut self, key: u128, rows: SharedRows, row_bytes: usize) {
        self.wave.rows.insert(key, rows);
        self.wave.bytes += row_bytes + TEXT_BYTES;
    }

    /// Ends the wave.
    pub(super) fn end_wave(&mut self) {
        let wave = mem::take(&mut self.wave);
        if wave.bytes > self.max_bytes {
            return;
        }
        if self.young.bytes + wave.bytes > self.max_bytes {
            self.old = mem::take(&mut self.young);
        }
        self.young.bytes += wave.bytes;
        self.young.rows.extend(wave.rows);
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
    fn the_latest_texts_that_memory_allows_are_found() {
        let mut repeats = Repeats::new(100 * (TEXT_BYTES + 1000));
        let added: Vec<SharedRows> = (0..1000).map(|_| rows()).collect();
        let mut most = 0;
        for (key, rows) in added.iter().enumerate() {
            repeats.add(key as u128, rows.clone(), 1000);
            if key % 7 == 0 {
                repeats.end_wave();
                let found = (0..=key).filter(|key| repeats.find(*key as u128).is_some()).count();
                assert!(found <= 100 && (key < 50 || found >= 43), "{found} after {key}");
                assert!((0..=key).rev().take(43).all(|key| repeats.find(key as u128).is_some()));
                most = most.max(found);
            }
        }
        assert!(most > 90, "both generations count: {most}");
        assert!(
            (0..1000)
                .filter_map(|key| Some((key, repeats.find(key as u128)?)))
                .all(|(key, rows)| { std::sync::Arc::ptr_eq(&rows, &added[key]) })
        );
    }
}
