//! Texts that wait, in the order of their deadlines.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The order of a text: its deadline, and a number that no other text has.
type Key = (Duration, u64);

/// A text that waits.
pub(super) struct WaitingText<T> {
    pub(super) request: u64,
    pub(super) tokens: usize,
    pub(super) text: T,
}

/// Texts in the order of their deadlines.
pub(super) struct Queue<T> {
    texts: BTreeMap<Key, WaitingText<T>>,
    tokens: usize,
}

impl<T> Queue<T> {
    fn new() -> Self {
        Queue { texts: BTreeMap::new(), tokens: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The deadline and the tokens of the first text.
    pub(super) fn first(&self) -> Option<(Duration, usize)> {
        self.texts.first_key_value().map(|((deadline, _), text)| (*deadline, text.tokens))
    }

    fn insert(&mut self, key: Key, text: WaitingText<T>) {
        self.tokens += text.tokens;
        self.texts.insert(key, text);
    }

    fn remove(&mut self, key: &Key) -> Option<WaitingText<T>> {
        let text = self.texts.remove(key)?;
        self.tokens -= text.tokens;
        Some(text)
    }

    fn pop_first(&mut self) -> Option<WaitingText<T>> {
        let (_, text) = self.texts.pop_first()?;
        self.tokens -= text.tokens;
        Some(text)
    }
}

/// The texts of a request that wait.
#[derive(Default)]
struct RequestTexts {
    /// The keys of its texts, those that do not wait any longer among them.
    keys: Vec<Key>,
    waiting: usize,
    is_large: bool,
}

/// All texts that wait.
pub(super) struct Waiting<T> {
    /// Texts that share batches.
    pub(super) short: Queue<T>,
    /// Texts that run alone.
    pub(super) long: Queue<T>,
    requests: HashMap<u64, RequestTexts>,
    /// The number of large requests.
    large: usize,
    /// The number of texts so far.
    added: u64,
}

impl<T> Waiting<T> {
    pub(super) fn new() -> Self {
        Waiting { short: Queue::new(), long: Queue::new(), requests: HashMap::new(), large: 0, added: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    pub(super) fn tokens(&self) -> usize {
        self.short.tokens + self.long.tokens
    }

    /// The number of large requests with texts that wait.
    pub(super) fn large_requests(&self) -> usize {
        self.large
    }

    /// Whether the first text is a long one.
    pub(super) fn is_long_first(&self) -> bool {
        match (self.short.texts.first_key_value(), self.long.texts.first_key_value()) {
            (Some((short, _)), Some((long, _))) => long < short,
            (_, long) => long.is_some(),
        }
    }

    /// `is_long`: the text runs alone. `is_large`: its request is large.
    pub(super) fn add(&mut self, deadline: Duration, text: WaitingText<T>, is_long: bool, is_large: bool) {
        let key = (deadline, self.added);
        self.added += 1;
        let request = self.requests.entry(text.request).or_default();
        request.keys.push(key);
        request.waiting += 1;
        self.large += usize::from(is_large && !request.is_large);
        request.is_large |= is_large;
        let queue = if is_long { &mut self.long } else { &mut self.short };
        queue.insert(key, text);
    }

    pub(super) fn take_short(&mut self) -> Option<WaitingText<T>> {
        let text = self.short.pop_first()?;
        self.forget(text.request);
        Some(text)
    }

    pub(super) fn take_long(&mut self) -> Option<WaitingText<T>> {
        let text = self.long.pop_first()?;
        self.forget(text.request);
        Some(text)
    }

    /// Removes the texts of a request and returns them.
    pub(super) fn cancel(&mut self, request: u64) -> Vec<T> {
        let Some(request) = self.requests.remove(&request) else { return Vec::new() };
        self.large -= usize::from(request.is_large);
        let texts =
            request.keys.iter().filter_map(|key| self.short.remove(key).or_else(|| self.long.remove(key)));
        texts.map(|text| text.text).collect()
    }

    /// Counts one text less for a request.
    fn forget(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.waiting -= 1;
        if request.waiting == 0 {
            self.large -= usize::from(request.is_large);
            self.requests.remove(&id);
        }
    }
}
