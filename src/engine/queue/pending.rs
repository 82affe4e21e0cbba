//! A call that has no answer yet, and the tokenizing of its texts.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Error, Result};

use super::call::{Answer, Answered, Call, CallTimes, OwnedInput};
use super::task::QueuedTask;
use crate::engine::schedule::Request;
use crate::engine::task::{RowOptions, TaskRow, TextError, TokenizeError};
use crate::engine::wave::EncodedText;
use crate::sys::threads::panic_to_error;
use crate::text::TokenizedText;

/// Bytes of texts that are tokenized at once, so that a large call does not keep a worker from the batches of
/// others.
const TOKENIZED_BYTES: usize = 1 << 15;
/// Bytes that a shorter text counts as there: it takes no less time.
const MIN_TEXT_BYTES: usize = 32;

pub(super) type Reply = Box<dyn FnOnce(Answer) + Send>;

/// A call that has no answer yet.
pub(super) struct Pending {
    pub task: Arc<dyn QueuedTask>,
    pub inputs: Vec<OwnedInput>,
    pub options: RowOptions,
    pub since: Instant,
    /// Texts without rows.
    missing: AtomicUsize,
    progress: Mutex<Progress>,
    /// `None`: the caller has its answer, or has gone.
    reply: Mutex<Option<Reply>>,
    /// When the caller has gone without an answer.
    pub gone_at: OnceLock<Instant>,
}

/// What has become of the texts of a call so far.
pub(super) struct Progress {
    pub request: Request,
    /// The number of texts that were tokenized.
    pub tokenized: usize,
    /// The first text that is too long, with the number of those after it.
    pub too_long: Option<TextError>,
    /// The texts that were tokenized, unless one is too long.
    pub texts: Vec<EncodedText>,
    pub times: CallTimes,
}

impl Pending {
    /// A call that has arrived in the schedule with this `request`.
    pub(super) fn new(call: Call, request: Request, reply: Reply) -> Self {
        let Call { task, inputs, options } = call;
        let progress = Progress {
            request,
            tokenized: 0,
            too_long: None,
            texts: Vec::with_capacity(inputs.len()),
            times: CallTimes::default(),
        };
        Pending {
            task,
            missing: AtomicUsize::new(inputs.len()),
            inputs,
            options,
            since: Instant::now(),
            progress: Mutex::new(progress),
            reply: Mutex::new(Some(reply)),
            gone_at: OnceLock::new(),
        }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_reply(&self) -> Option<Reply> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a caller waits for the answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(super) fn fail(&self, error: Error) {
        self.answer(|| Err(error));
    }

    /// Answers, if a caller waits for it. A caller whose reply panics is told so by the channel that it waits
    /// for; the worker goes on.
    fn answer(&self, answer: impl FnOnce() -> Answer) {
        if let Some(reply) = self.take_reply() {
            let _ = panic_to_error(|| {
                reply(answer());
                Ok(())
            });
        }
    }

    /// Puts the rows of a text into their place, and returns whether they were the last ones.
    pub(super) fn place(&self, index: usize, rows: Vec<TaskRow>) -> bool {
        let _ = self.progress().texts[index].rows.set(rows);
        self.missing.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Answers with the rows of all texts.
    pub(super) fn complete(&self) {
        self.answer(|| {
            let mut progress = self.progress();
            Ok(Answered { texts: mem::take(&mut progress.texts), times: progress.times })
        });
    }
}

/// Some texts of a call.
pub(super) struct Tokenized {
    /// Those that are not too long.
    pub texts: Vec<TokenizedText>,
    /// The number of all.
    pub count: usize,
    /// The first one that is too long, with the number of those after it.
    pub too_long: Option<TextError>,
}

impl Tokenized {
    /// Tokenizes texts of a call from the one with the index `first` on.
    ///
    /// # Errors
    /// [`TextError`] for the first text that cannot be tokenized, whatever its length.
    pub(super) fn some(call: &Pending, first: usize) -> Result<Self> {
        let (mut bytes, mut some) = (0, Tokenized { texts: Vec::new(), count: 0, too_long: None });
        for (index, input) in call.inputs.iter().enumerate().skip(first) {
            match panic_to_error(|| Ok(call.task.tokenize(&input.input())))? {
                Ok(text) => some.texts.push(text),
                Err(error @ TokenizeError::TooLong { .. }) => {
                    let error = TextError::new(index, error);
                    some.too_long = Some(some.too_long.map_or(error.clone(), |first| first.with(&error)));
                }
                Err(error) => return Err(TextError::new(index, error).into()),
            }
            some.count += 1;
            bytes += input.bytes().max(MIN_TEXT_BYTES);
            if bytes >= TOKENIZED_BYTES {
                break;
            }
        }
        Ok(some)
    }
}
