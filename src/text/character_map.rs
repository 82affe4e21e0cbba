//! The character map of SentencePiece, `precompiled_charsmap` of a normalizer: the bytes of a trie, the trie
//! (a double array, Yata et al. 2007), and the replacements of the strings in it, each with a NUL at its end.

/// Maximum bytes of a replacement that are looked at: those of Unicode's normal forms have at most 33.
const MAX_REPLACEMENT: usize = 64;
/// The bits of a unit that say which byte leads to it. A unit with the highest bit is a value.
const LABEL: u32 = 1 << 31 | BYTE;
const BYTE: u32 = 0xff;

/// The bytes of the longest replacement, [`MAX_REPLACEMENT`] for a longer one. `None` if the map is damaged:
/// some text may lead out of the trie or of the replacements.
pub(super) fn longest_replacement(map: &[u8]) -> Option<usize> {
    let (bytes, rest) = map.split_first_chunk()?;
    let (units, replacements) = rest.split_at_checked(u32::from_le_bytes(*bytes) as usize / 4 * 4)?;
    let units: Vec<u32> = units.as_chunks().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
    let replacements = std::str::from_utf8(replacements).ok()?;
    let mut longest = 0;
    for (place, unit) in units.iter().copied().enumerate() {
        // No byte leads to another unit but the first one.
        if place > 0 && !(1..=BYTE).contains(&(unit & LABEL)) {
            continue;
        }
        // The children are at this place, combined with a byte each; so is the value, with 0.
        let children = place ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        if children | BYTE as usize >= units.len() {
            return None;
        }
        if place > 0 && unit & (1 << 8) != 0 {
            let replacement = replacements.get((units[children] & !(1 << 31)) as usize..)?;
            let bytes = replacement.bytes().take(MAX_REPLACEMENT).take_while(|byte| *byte != 0).count();
            longest = longest.max(bytes);
        }
    }
    (!units.is_empty()).then_some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map with the replacement of `a` at an index of `replacements`, and the place of the children of `a`.
    fn map(index: u32, children: u32, replacements: &[u8]) -> Vec<u8> {
        let mut units = vec![0u32; 512];
        // The children of the first unit are at its own place.
        let place = u32::from(b'a');
        units[place as usize] = (children ^ place) << 10 | 1 << 8 | place;
        if let Some(value) = units.get_mut(children as usize) {
            *value = 1 << 31 | index;
        }
        let units = units.iter().flat_map(|unit| unit.to_le_bytes());
        [2048u32.to_le_bytes().to_vec(), units.collect(), replacements.to_vec()].concat()
    }

    #[test]
    fn the_longest_replacement_is_found_and_damage_is_none() {
        let replacements = "bcd\0é\0".as_bytes();
        assert_eq!(longest_replacement(&map(0, 256, replacements)), Some(3));
        assert_eq!(longest_replacement(&map(4, 256, replacements)), Some(2));
        assert_eq!(longest_replacement(&map(7, 256, replacements)), Some(0));
        assert_eq!(longest_replacement(&map(0, 256, &[b'x'; 1000])), Some(MAX_REPLACEMENT));
        // Within a character, past the replacements, children past the trie, bytes that are no text.
        for damaged in [map(5, 256, replacements), map(8, 256, replacements), map(0, 512, replacements)] {
            assert_eq!(longest_replacement(&damaged), None);
        }
        assert_eq!(longest_replacement(&map(0, 256, b"\xff")), None);
        let whole = map(0, 256, replacements);
        for length in [0, 3, 4, 1000, 2051] {
            assert_eq!(longest_replacement(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(longest_replacement(&[0; 4]), None);
    }
}
