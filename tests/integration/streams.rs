//! Arrow streams through pipes: a record batch of rows for each record batch of texts.

use crate::support::arrow;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Int64Type, Schema};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use crate::support::{embed, embedding, fixture, model_command, rows, stderr};

/// A run whose input is written a batch at a time, after the rows of the batch before have been read.
struct Lockstep {
    child: Child,
    writer: StreamWriter<ChildStdin>,
    batches: Receiver<RecordBatch>,
    /// Texts sent so far.
    sent: i32,
}

/// The columns of the input: a text, which may be null, and a number.
fn schema() -> Schema {
    let text = Field::new("text", DataType::Utf8, true);
    Schema::new(vec![text, Field::new("number", DataType::Int32, true)])
}

impl Lockstep {
    fn start(mut command: Command) -> Self {
        command.args(["-i", "-", "--input-format", "arrow", "--output-format", "arrow", "--keep", "number"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, batches) = channel();
        let output = child.stdout.take().unwrap();
        thread::spawn(move || {
            let reader = StreamReader::try_new(output, None).unwrap();
            reader.for_each(|batch| send.send(batch.unwrap()).unwrap());
        });
        let writer = StreamWriter::try_new(child.stdin.take().unwrap(), &schema()).unwrap();
        Lockstep { child, writer, batches, sent: 0 }
    }

    fn send(&mut self, texts: &[Option<&str>]) {
        let numbers = Int32Array::from_iter_values((self.sent..).take(texts.len()));
        self.sent += texts.len() as i32;
        let columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(texts.to_vec())), Arc::new(numbers)];
        self.writer.write(&RecordBatch::try_new(schema().into(), columns).unwrap()).unwrap();
    }

    /// The next batch of rows; the input is still open.
    #[track_caller]
    fn receive(&mut self) -> RecordBatch {
        self.batches.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| {
            self.child.kill().unwrap();
            panic!("no batch came back");
        })
    }

    /// Ends the input.
    fn finish(mut self) -> Output {
        self.writer.finish().unwrap();
        drop(self.writer);
        assert!(self.batches.recv_timeout(Duration::from_secs(60)).is_err(), "a batch too many");
        self.child.wait_with_output().unwrap()
    }
}

fn numbers(batch: &RecordBatch) -> Vec<i32> {
    batch["number"].as_primitive::<Int32Type>().values().to_vec()
}

/// The vectors of a batch.
fn vectors(batch: &RecordBatch) -> Vec<Vec<f32>> {
    let vectors = batch["embedding"].as_fixed_size_list();
    let values = vectors.values().as_primitive::<Float32Type>().values();
    values.chunks(vectors.value_length() as usize).map(<[f32]>::to_vec).collect()
}

#[test]
fn each_batch_of_texts_gives_one_batch_of_rows_before_the_next_one_is_sent() {
    let texts: Vec<String> = (0..500).map(|i| format!("the lamp {}", "burns ".repeat(i % 7))).collect();
    let alone = rows(&embed("bert-tiny", &texts));
    // A batch of 300 texts has many more tokens than are planned at once.
    let sizes = [1, 300, 2, 1, 196];
    let model = fixture("bert-tiny");
    let mut run = Lockstep::start(model_command("embed", &model, &["--batch-tokens", "64"]));
    let mut start = 0;
    for size in sizes {
        let end = start + size;
        run.send(&texts[start..end].iter().map(|text| Some(&text[..])).collect::<Vec<_>>());
        let batch = run.receive();
        assert_eq!(numbers(&batch), (start as i32..end as i32).collect::<Vec<_>>());
        let expected: Vec<Vec<f32>> = alone[start..end].iter().map(embedding).collect();
        assert!(vectors(&batch) == expected, "rows {start} to {end}");
        start = end;
    }
    let output = run.finish();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn batches_that_are_sent_ahead_are_not_merged() {
    let mut run = Lockstep::start(model_command("embed", &fixture("bert-tiny"), &[]));
    let sizes: Vec<usize> = (0..40).map(|i| 1 + i % 5).collect();
    for size in &sizes {
        run.send(&vec![Some("the wick"); *size]);
    }
    let found: Vec<usize> = sizes.iter().map(|_| run.receive().num_rows()).collect();
    assert_eq!(found, sizes);
    assert!(run.finish().status.success());
}

#[test]
fn rows_that_are_skipped_are_missing_from_their_batch_which_may_be_empty() {
    let mut run = Lockstep::start(model_command("embed", &fixture("bert-tiny"), &["--on-error", "skip"]));
    run.send(&[Some("a lamp"), None, Some("the wick")]);
    let batch = run.receive();
    assert_eq!(numbers(&batch), [0, 2]);
    assert_eq!(batch["index"].as_primitive::<Int64Type>().values(), &[0, 2]);
    run.send(&[None]);
    assert_eq!(run.receive().num_rows(), 0);
    run.send(&[Some("a lamp")]);
    assert_eq!(numbers(&run.receive()), [4]);
    let output = run.finish();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("standard input row 2"), "{}", stderr(&output));
}

#[test]
fn without_skipping_a_text_that_cannot_be_read_ends_the_run_after_the_rows_before_it() {
    let mut run = Lockstep::start(model_command("embed", &fixture("bert-tiny"), &[]));
    run.send(&[Some("a lamp")]);
    assert_eq!(numbers(&run.receive()), [0]);
    run.send(&[Some("the wick"), None]);
    let output = run.child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("standard input row 3"), "{}", stderr(&output));
}

#[test]
fn every_task_answers_batch_by_batch() {
    let classifier = fixture("heads/bert");
    for (command, model, args, column) in [
        ("classify", &classifier, &[][..], "labels"),
        ("rerank", &fixture("bert-tiny"), &["--query", "a lamp"], "score"),
        ("embed", &fixture("bert-tiny"), &["--pooling", "none"], "embeddings"),
    ] {
        let mut run = Lockstep::start(model_command(command, model, args));
        for size in [2, 1, 5] {
            run.send(&vec![Some("the wick"); size]);
            let batch = run.receive();
            assert_eq!(batch.num_rows(), size, "{command}");
            assert!(batch.column_by_name(column).is_some(), "{command}: {:?}", batch.schema());
        }
        assert!(run.finish().status.success(), "{command}");
    }
}

#[test]
fn the_types_of_columns_come_from_the_whole_first_batch() {
    let mut run = Lockstep::start(model_command("embed", &fixture("bert-tiny"), &[]));
    let number = |numbers: Vec<Option<i32>>| -> RecordBatch {
        let texts = StringArray::from(vec!["a lamp"; numbers.len()]);
        let columns: Vec<ArrayRef> = vec![Arc::new(texts), Arc::new(Int32Array::from(numbers))];
        RecordBatch::try_new(schema().into(), columns).unwrap()
    };
    run.writer.write(&number(vec![None, Some(7)])).unwrap();
    assert_eq!(run.receive()["number"].as_primitive::<Int32Type>().value(1), 7);
    assert!(run.finish().status.success());
}
