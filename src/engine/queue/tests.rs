//! A queue with a task whose rows depend on the text alone.

use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use anyhow::bail;

use super::*;
use crate::engine::{
    EncodedText, Engine, MemoryBudget, RowOptions, Task, TaskInput, TaskRow, TextError, TextFault,
    TokenizeError, Workload,
};
use crate::rows::Content;
use crate::text::{Sequence, TokenIds, TokenizedText};

/// A token is a character, and a row is a number. Some characters fail, or wait.
struct Letters {
    /// A text with `w` is encoded when there is a message.
    gate: Mutex<Receiver<()>>,
}

impl Letters {
    fn new() -> (Arc<Self>, Sender<()>) {
        let (open, gate) = mpsc::channel();
        (Arc::new(Letters { gate: Mutex::new(gate) }), open)
    }

    fn score(&self, text: &TokenizedText) -> Result<f32> {
        let ids = &text.sequences[0].tokens.ids;
        let has = |letter: char| ids.contains(&u32::from(letter));
        if has('w') {
            self.gate.lock().unwrap().recv().unwrap();
        }
        assert!(!has('p'), "a text with p");
        if has('f') {
            bail!("a text with f");
        }
        Ok(ids.iter().fold(1.0, |score: f32, id| (31.0 * score + *id as f32).sin()))
    }
}

impl Task for Letters {
    type Output = f32;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        assert_ne!(input.text, "panic", "a tokenizer that panics");
        let ids: Vec<u32> = input.text.chars().map(u32::from).collect();
        match ids.len() {
            0 => Err(TokenizeError::NoTokens),
            tokens @ 100.. => Err(TokenizeError::TooLong { tokens, reason: "is long".into() }),
            _ => {
                let token_type_ids = vec![0; ids.len()];
                let tokens = TokenIds {
                    ids,
                    token_type_ids,
                    truncated_tokens: 0,
                    alignment: None,
                    unattended_tokens: 0,
                };
                Ok(TokenizedText::new(vec![Sequence { tokens, chunks: Vec::new() }]))
            }
        }
    }

    fn encode(&self, texts: &[TokenizedText], _: usize, _: usize) -> Result<Vec<f32>> {
        texts.iter().map(|text| self.score(text)).collect()
    }

    fn finish(&self, text: &TokenizedText, score: f32, _: &RowOptions) -> Vec<TaskRow> {
        vec![TaskRow::of(text, Content::Score { score, rank: None })]
    }
}

/// A queue with `workers` workers, whose batches have at most `max_batch_tokens` tokens.
fn queue(workers: usize, max_batch_tokens: usize) -> Queue {
    let (short_workers, can_share) = if workers > 1 { (1, true) } else { (0, false) };
    let capacity = Capacity { workers, short_workers, can_share, max_batch_tokens, tokens_per_second: 1e4 };
    Queue::start(capacity, workers).unwrap()
}

fn call(task: &Arc<Letters>, texts: &[&str]) -> Call {
    let input = |text: &&str| OwnedInput { text: (*text).into(), ..OwnedInput::default() };
    Call {
        task: Arc::new(QueueTask::new(task.clone(), 64, 1.0)),
        inputs: texts.iter().map(input).collect(),
        options: RowOptions::default(),
    }
}

/// Hands over a call, whose answer comes on the channel.
fn ask(queue: &Queue, task: &Arc<Letters>, texts: &[&str]) -> (Ticket, Receiver<Answer>) {
    let (send, receive) = mpsc::channel();
    (queue.submit(call(task, texts), move |answer| drop(send.send(answer))), receive)
}

const PATIENCE: Duration = Duration::from_secs(60);

fn answer((_ticket, receive): &(Ticket, Receiver<Answer>)) -> Answer {
    receive.recv_timeout(PATIENCE).expect("an answer")
}

/// The bits of the only row of each text.
fn bits(texts: &[EncodedText]) -> Vec<u32> {
    let score = |text: &EncodedText| match text.rows() {
        [TaskRow { content: Content::Score { score, .. }, .. }] => score.to_bits(),
        rows => panic!("{} rows", rows.len()),
    };
    texts.iter().map(score).collect()
}

fn wait_until(is_reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_reached() {
        assert!(start.elapsed() < PATIENCE, "it does not become true");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rows_are_those_of_the_engine() {
    let (task, _open) = Letters::new();
    let texts: Vec<String> =
        (0..400_usize).map(|i| "abcdeghi".repeat(i % 12 + 1)[i % 8..].to_owned()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let workload =
        Workload { encoders: 1, cpu_threads: 2, batch_tokens: 64, max_length: 100, ..Workload::default() };
    let engine = Engine::new(task.clone(), MemoryBudget::new(&workload, None).unwrap(), None);
    let inputs: Vec<TaskInput> = texts.iter().map(|text| TaskInput::new(text)).collect();
    let expected = bits(&engine.encode(&inputs, &RowOptions::default()).unwrap());
    for workers in [1, 2, 5] {
        let queue = queue(workers, 64);
        for size in [1, 3, 400] {
            let calls: Vec<_> = texts.chunks(size).map(|texts| ask(&queue, &task, texts)).collect();
            let found: Vec<u32> = calls.iter().flat_map(|call| bits(&answer(call).unwrap().texts)).collect();
            assert_eq!(found, expected, "{workers} workers, calls of {size}");
        }
        let counters = queue.counters();
        assert_eq!((counters.texts, counters.cancelled), (1200, 0));
        assert_eq!(queue.length(), QueueLength::default());
    }
}

#[test]
fn a_text_that_fails_in_a_batch_fails_its_call_alone() {
    let (task, open) = Letters::new();
    let queue = queue(1, 1000);
    let held = ask(&queue, &task, &["w"]);
    wait_until(|| queue.length().texts == 0 && task.gate.try_lock().is_err());
    // One batch, as all of them wait for the only worker.
    let calls: Vec<_> = [&["a"][..], &["p"], &["b", "c"], &["f"], &["d", "xp", "e"], &["g"]]
        .map(|texts| ask(&queue, &task, texts))
        .into();
    open.send(()).unwrap();
    assert!(answer(&held).is_ok());
    let found: Vec<Result<usize, String>> = (calls.iter())
        .map(|call| answer(call).map(|answered| answered.texts.len()).map_err(|error| error.to_string()))
        .collect();
    let panicked = || Err("a thread has panicked; please report this as a bug".to_owned());
    assert_eq!(found, [Ok(1), panicked(), Ok(2), Err("a text with f".into()), panicked(), Ok(1)]);
    assert!(answer(&ask(&queue, &task, &["a"])).is_ok(), "the worker goes on");
    assert_eq!(queue.counters().cancelled, 0);
}

#[test]
fn the_time_of_batches_that_run_at_once_counts_once() {
    let (task, open) = Letters::new();
    // Each batch has one text.
    let queue = queue(3, 1);
    let since = Instant::now();
    let held = ask(&queue, &task, &["w", "w", "w"]);
    thread::sleep(Duration::from_millis(100));
    (0..3).for_each(|_| open.send(()).unwrap());
    let CallTimes { queue, encode, .. } = answer(&held).unwrap().times;
    assert!(!encode.is_zero() && queue + encode <= since.elapsed(), "{queue:?} {encode:?}");
}

#[test]
fn a_text_that_is_not_tokenized_is_named() {
    let (task, _open) = Letters::new();
    let queue = queue(2, 64);
    let long = "a".repeat(120);
    for (texts, index, fault) in [
        (&["a", "", "b"][..], 1, TextFault::Invalid),
        (&["a", "b", &long], 2, TextFault::TooLong { tokens: 120, others: 0 }),
        (&["a", &long, "b", &long, &long], 1, TextFault::TooLong { tokens: 120, others: 2 }),
        // More than are tokenized at once.
        (&[&*long; 3000], 0, TextFault::TooLong { tokens: 120, others: 2999 }),
        (&["a", &long, ""], 2, TextFault::Invalid),
    ] {
        let error = answer(&ask(&queue, &task, texts)).err().unwrap();
        let error: &TextError = error.downcast_ref().unwrap();
        assert_eq!((error.index, error.fault), (index, fault));
    }
    assert!(answer(&ask(&queue, &task, &["a", "panic"])).is_err());
    assert!(answer(&ask(&queue, &task, &["a"])).is_ok());
    wait_until(|| queue.length() == QueueLength::default());
}

#[test]
fn a_reply_that_panics_does_not_end_its_worker() {
    let (task, _open) = Letters::new();
    let queue = queue(1, 64);
    for text in ["a", "p", ""] {
        let (send, receive) = mpsc::channel::<()>();
        let ticket = queue.submit(call(&task, &[text]), move |_| {
            let _send = send;
            panic!("a reply that panics");
        });
        assert_eq!(
            receive.recv_timeout(PATIENCE),
            Err(mpsc::RecvTimeoutError::Disconnected),
            "the caller is told"
        );
        drop(ticket);
        assert!(answer(&ask(&queue, &task, &["a"])).is_ok());
    }
    queue.run(|| panic!("work that panics"));
    assert!(answer(&ask(&queue, &task, &["a"])).is_ok());
    assert_eq!(queue.counters().cancelled, 0);
}

#[test]
fn texts_without_a_caller_are_left_out_and_counted() {
    let (task, open) = Letters::new();
    // Each batch has one text.
    let queue = queue(1, 1);
    let encoded = ask(&queue, &task, &["w", "a", "b"]);
    wait_until(|| queue.length().texts == 2);
    let not_tokenized = ask(&queue, &task, &["a", "b", "c", "d", "e"]);
    let waits = ask(&queue, &task, &["z"]);
    let gone = [encoded, not_tokenized].map(|(ticket, receive)| {
        drop(ticket);
        receive
    });
    assert_eq!(queue.counters().cancelled, 7);
    assert_eq!(queue.length(), QueueLength::default());
    open.send(()).unwrap();
    assert!(answer(&waits).is_ok());
    for receive in gone {
        assert!(receive.recv_timeout(PATIENCE).is_err(), "no one asks for the answer");
    }
    let counters = queue.counters();
    assert_eq!((counters.texts, counters.cancelled), (2, 7), "w and z");
    drop(waits);
    assert_eq!(queue.counters().cancelled, 7, "an answered call is not cancelled");
}

#[test]
fn work_and_batches_take_turns() {
    let (task, open) = Letters::new();
    let queue = queue(1, 64);
    let held = ask(&queue, &task, &["w"]);
    wait_until(|| task.gate.try_lock().is_err());
    let (send, receive) = mpsc::channel();
    let (of_call, of_work) = (send.clone(), send);
    // Its tokenizing is work, too.
    let _ticket = queue.submit(call(&task, &["a"]), move |_| of_call.send("batch").unwrap());
    queue.run(move || of_work.send("work").unwrap());
    open.send(()).unwrap();
    assert!(answer(&held).is_ok());
    assert_eq!([receive.recv_timeout(PATIENCE), receive.recv_timeout(PATIENCE)], [Ok("batch"), Ok("work")]);
}
