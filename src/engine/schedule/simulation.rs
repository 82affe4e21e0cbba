//! A simulated server: discrete events on a virtual clock, the same in every run.
//!
//! A core is at nine tenths of its rate with a batch of 64 tokens. If more threads run than there are cores,
//! all of them are slower.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Capacity, Order, Run, Schedule};

/// Tokens per second of a core with a large batch: about that of all-MiniLM-L6-v2 in f32.
const PEAK: f64 = 5900.0;
/// The tokens whose time a batch takes in addition to that of its own.
const BATCH_COST: f64 = 7.0;
/// The time to hand over a batch, in seconds.
const HANDOVER: f64 = 100e-6;
/// The time in which the threads that share a batch wait for one another, in seconds.
const SHARING: f64 = 300e-6;
/// Tokens per second of a core at nine tenths of its peak: what the loads are multiples of.
pub(super) const RATE: f64 = 0.9 * PEAK;

/// An order of the texts of requests.
pub(super) trait TextOrder: Order<Run = Run<usize>> {
    fn waiting_tokens(&self) -> usize;
    /// A request arrives with texts, of which each has a number.
    fn arrive(&mut self, now: Duration, texts: &[usize], tokens: &[usize]);
}

impl TextOrder for Schedule<usize> {
    fn waiting_tokens(&self) -> usize {
        Schedule::waiting_tokens(self)
    }

    fn arrive(&mut self, now: Duration, texts: &[usize], tokens: &[usize]) {
        let mut request = Schedule::arrive(self, now);
        texts.iter().zip(tokens).for_each(|(&text, &tokens)| self.add(&mut request, tokens, text));
    }
}

/// A schedule for threads of a CPU.
pub(super) fn schedule(cores: usize) -> Schedule<usize> {
    let capacity = Capacity {
        workers: cores,
        short_workers: (cores / 4).max(1),
        can_share: true,
        max_batch_tokens: 1024,
        tokens_per_second: RATE,
    };
    Schedule::new(capacity)
}

/// Arrival order, with the batches of a schedule.
pub(super) struct ArrivalOrder {
    texts: VecDeque<(usize, usize)>,
    idle: Vec<bool>,
}

impl ArrivalOrder {
    const BATCH_TOKENS: usize = 190;

    pub(super) fn new(cores: usize) -> Self {
        ArrivalOrder { texts: VecDeque::new(), idle: vec![true; cores] }
    }
}

impl TextOrder for ArrivalOrder {
    fn waiting_tokens(&self) -> usize {
        self.texts.iter().map(|(tokens, _)| tokens).sum()
    }

    fn arrive(&mut self, _: Duration, texts: &[usize], tokens: &[usize]) {
        self.texts.extend(tokens.iter().copied().zip(texts.iter().copied()));
    }
}

impl Order for ArrivalOrder {
    type Run = Run<usize>;

    fn workers(&self) -> usize {
        self.idle.len()
    }

    fn has_run_for(&self, worker: usize) -> bool {
        self.idle[worker] && !self.texts.is_empty()
    }

    fn take(&mut self, _: Duration, worker: usize) -> Option<Run<usize>> {
        let (mut tokens, text) = self.texts.pop_front()?;
        let mut texts = vec![text];
        while let Some(&(next, text)) = self.texts.front()
            && tokens + next <= Self::BATCH_TOKENS
        {
            self.texts.pop_front();
            tokens += next;
            texts.push(text);
        }
        self.idle[worker] = false;
        Some(Run { texts, is_shared: false })
    }

    fn done(&mut self, _: Duration, worker: usize) {
        self.idle[worker] = true;
    }
}

/// A client, which sends requests.
#[derive(Clone, Copy)]
pub(super) struct Client {
    /// Texts per request.
    pub(super) texts: usize,
    /// Tokens of 19 texts of 20.
    pub(super) tokens: usize,
    /// Tokens of the 20th.
    pub(super) long_tokens: usize,
    /// Requests per second, at random times. `None`: the next request is sent when the last one is done.
    pub(super) per_second: Option<f64>,
}

impl Client {
    /// A client that sends the same requests at random times, which are a part `load` of what all cores can
    /// do.
    pub(super) fn with_load(self, load: f64, cores: usize) -> Self {
        let request_tokens = self.texts as f64 * (0.95 * self.tokens as f64 + 0.05 * self.long_tokens as f64);
        Client { per_second: Some(load * RATE * cores as f64 / request_tokens), ..self }
    }
}

/// A text that is done.
#[derive(Clone, Copy)]
pub(super) struct Done {
    pub(super) client: usize,
    pub(super) tokens: usize,
    /// The time from its arrival, in seconds.
    pub(super) latency: f64,
    /// The time of its end, in seconds.
    pub(super) at: f64,
}

struct Text {
    client: usize,
    request: usize,
    tokens: usize,
    arrived: f64,
}

struct Running {
    /// The time of its end on the clock of threads.
    end: f64,
    threads: usize,
    texts: Vec<usize>,
}

/// A server with clients.
pub(super) struct Simulation<O> {
    order: O,
    cores: usize,
    clients: Vec<Client>,
    /// Requests at random times are refused while as many tokens wait.
    max_waiting_tokens: usize,
    random: u64,
    now: f64,
    /// The time that a thread has run which always runs: slower than `now` while more threads run than there
    /// are cores.
    thread_clock: f64,
    /// The next requests, by their times in nanoseconds and their numbers: their clients.
    arrivals: BTreeMap<(u64, usize), usize>,
    texts: Vec<Text>,
    /// The texts of each request that are not done.
    requests: Vec<usize>,
    running: Vec<Option<Running>>,
    done: Vec<Done>,
}

impl<O: TextOrder> Simulation<O> {
    pub(super) fn new(order: O, cores: usize, clients: &[Client]) -> Self {
        let mut simulation = Simulation {
            cores,
            clients: clients.to_vec(),
            max_waiting_tokens: usize::MAX,
            random: 0x9e37_79b9_7f4a_7c15,
            now: 0.0,
            thread_clock: 0.0,
            arrivals: BTreeMap::new(),
            texts: Vec::new(),
            requests: Vec::new(),
            running: (0..order.workers()).map(|_| None).collect(),
            done: Vec::new(),
            order,
        };
        for client in 0..clients.len() {
            simulation.plan_arrival(client);
        }
        simulation
    }

    /// Runs until as many texts are done.
    pub(super) fn run(mut self, texts: usize) -> Vec<Done> {
        while self.done.len() < texts {
            self.step();
        }
        self.done
    }

    /// Runs until as many texts are done, then without new requests until all are. Requests at random times
    /// are refused while `max_waiting_tokens` wait.
    pub(super) fn run_overloaded(mut self, texts: usize, max_waiting_tokens: usize) -> Vec<Done> {
        self.max_waiting_tokens = max_waiting_tokens;
        while self.done.len() < self.texts.len() || self.done.len() < texts {
            if self.done.len() >= texts {
                self.arrivals.clear();
            }
            self.step();
        }
        self.done
    }

    /// A pseudo-random number (Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn plan_arrival(&mut self, client: usize) {
        let uniform = (self.random() >> 11) as f64 / (1u64 << 53) as f64;
        let wait = self.clients[client].per_second.map_or(0.0, |rate| -(1.0 - uniform).ln() / rate);
        let key = (((self.now + wait) * 1e9) as u64, self.requests.len() * self.clients.len() + client);
        self.arrivals.insert(key, client);
    }

    /// The next event: a request arrives, or a run ends.
    fn step(&mut self) {
        let threads: usize = self.running.iter().flatten().map(|running| running.threads).sum();
        let speed = (self.cores as f64 / threads as f64).min(1.0);
        let ends = self.running.iter().enumerate();
        let ends = ends.filter_map(|(worker, running)| Some((worker, running.as_ref()?.end)));
        let next_end = ends.min_by(|a, b| a.1.total_cmp(&b.1));
        let end_at = next_end.map_or(f64::INFINITY, |(_, end)| self.now + (end - self.thread_clock) / speed);
        let arrival_at = self.arrivals.keys().next().map_or(f64::INFINITY, |key| key.0 as f64 / 1e9);
        let at = end_at.min(arrival_at).max(self.now);
        self.thread_clock += (at - self.now) * speed;
        self.now = at;
        match next_end {
            Some((worker, _)) if end_at <= arrival_at => self.end(worker),
            _ => self.arrive(),
        }
        let now = Duration::from_secs_f64(self.now);
        while let Some(worker) = (0..self.order.workers()).find(|&worker| self.order.has_run_for(worker)) {
            let run = self.order.take(now, worker).expect("there are texts for the next worker");
            self.start(worker, run);
        }
    }

    fn arrive(&mut self) {
        let Some((_, client)) = self.arrivals.pop_first() else { return };
        let Client { texts, tokens, long_tokens, per_second } = self.clients[client];
        if per_second.is_some() {
            self.plan_arrival(client);
            if self.order.waiting_tokens() >= self.max_waiting_tokens {
                return;
            }
        }
        let lengths = (0..texts).map(|_| if self.random().is_multiple_of(20) { long_tokens } else { tokens });
        let lengths: Vec<usize> = lengths.collect();
        let numbers: Vec<usize> = (self.texts.len()..self.texts.len() + texts).collect();
        self.order.arrive(Duration::from_secs_f64(self.now), &numbers, &lengths);
        let (request, arrived) = (self.requests.len(), self.now);
        self.texts.extend(lengths.into_iter().map(|tokens| Text { client, request, tokens, arrived }));
        self.requests.push(texts);
    }

    fn start(&mut self, worker: usize, run: Run<usize>) {
        let tokens: usize = run.texts.iter().map(|&text| self.texts[text].tokens).sum();
        let seconds = (tokens as f64 + BATCH_COST) / PEAK;
        let (threads, seconds) = match run.is_shared {
            true => (self.cores, HANDOVER + SHARING + seconds / self.cores as f64),
            false => (1, HANDOVER + seconds),
        };
        self.running[worker] = Some(Running { end: self.thread_clock + seconds, threads, texts: run.texts });
    }

    fn end(&mut self, worker: usize) {
        let Some(running) = self.running[worker].take() else { return };
        self.order.done(Duration::from_secs_f64(self.now), worker);
        for text in running.texts {
            let Text { client, request, tokens, arrived } = self.texts[text];
            self.done.push(Done { client, tokens, latency: self.now - arrived, at: self.now });
            self.requests[request] -= 1;
            if self.requests[request] == 0 && self.clients[client].per_second.is_none() {
                self.plan_arrival(client);
            }
        }
    }
}
