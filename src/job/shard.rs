//! A contiguous part of the records of an input, for runs in several processes.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// One of several parts of the records, in their order: `2/4` is the second quarter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 1 to `count`.
    number: u64,
    /// The number of shards.
    count: u64,
}

impl Shard {
    /// The records of this shard out of `total`. The sizes of two shards differ by one record at most, and
    /// all shards together have every record once.
    pub fn range(self, total: u64) -> Range<u64> {
        let end = |shards: u64| (u128::from(total) * u128::from(shards) / u128::from(self.count)) as u64;
        end(self.number - 1)..end(self.number)
    }

    /// Its number, from 1.
    pub fn number(self) -> u64 {
        self.number
    }

    /// The number of shards.
    pub fn count(self) -> u64 {
        self.count
    }

    /// What stands for `{shard}` in the name of a file: `02-of-16`, so that names are sorted as shards are.
    pub fn file_name_part(self) -> String {
        let Shard { number, count } = self;
        format!("{number:0width$}-of-{count}", width = count.to_string().len())
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, count)| {
            Some((number.trim().parse::<u64>().ok()?, count.trim().parse::<u64>().ok()?))
        });
        match numbers {
            Some((_, 0)) => Err("there is no shard of 0; pass 1/1 for all records".into()),
            Some((number, count)) if number == 0 || number > count => {
                Err(format!("shards are numbered from 1; pass 1/{count} to {count}/{count}"))
            }
            Some((number, count)) => Ok(Shard { number, count }),
            None => Err("expected a number and a count, for example 2/4".into()),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::Shard;

    #[test]
    fn shards_have_every_record_once() {
        for (total, count) in [(0, 1), (0, 3), (2, 5), (10, 3), (1000, 7), (u64::MAX, 4)] {
            let mut end = 0;
            for number in 1..=count {
                let range = Shard { number, count }.range(total);
                assert_eq!(range.start, end);
                let size = range.end - range.start;
                assert!(size == total / count || size == total / count + 1, "{size} of {total}");
                end = range.end;
            }
            assert_eq!(end, total);
        }
    }

    #[test]
    fn a_shard_is_a_number_of_a_count() {
        assert_eq!("2/4".parse(), Ok(Shard { number: 2, count: 4 }));
        assert_eq!("2/4".parse::<Shard>().unwrap().to_string(), "2/4");
        for wrong in ["", "2", "0/4", "5/4", "1/0", "a/b", "-1/4", "1/2/3"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
