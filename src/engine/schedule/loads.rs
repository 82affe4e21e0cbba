//! The loads that a schedule has to bear, on simulated machines: latencies and throughput.

use super::SLACK_FACTOR;
use super::simulation::{ArrivalOrder, Client, Done, RATE, Simulation, schedule};

/// A text of 18 tokens per request.
const SHORT: Client = Client { texts: 1, tokens: 18, long_tokens: 18, per_second: None };

/// Runs a schedule for `cores` until `texts` texts are done.
fn run(cores: usize, clients: &[Client], texts: usize) -> Vec<Done> {
    Simulation::new(schedule(cores), cores, clients).run(texts)
}

/// The same in arrival order.
fn run_in_arrival_order(cores: usize, clients: &[Client], texts: usize) -> Vec<Done> {
    Simulation::new(ArrivalOrder::new(cores), cores, clients).run(texts)
}

/// The 99th percentile of the latency of some texts, in milliseconds.
fn p99(done: &[Done], is_counted: impl Fn(&Done) -> bool) -> f64 {
    let mut latencies: Vec<f64> =
        done.iter().filter(|text| is_counted(text)).map(|text| text.latency).collect();
    latencies.sort_by(f64::total_cmp);
    1e3 * latencies[latencies.len() * 99 / 100]
}

/// Tokens per second of some texts, without the start.
fn throughput(done: &[Done], is_counted: impl Fn(&Done) -> bool) -> f64 {
    let (start, done) = done.split_at(done.len() / 5);
    let seconds = done[done.len() - 1].at - start[start.len() - 1].at;
    done.iter().filter(|text| is_counted(text)).map(|text| text.tokens as f64).sum::<f64>() / seconds
}

#[test]
fn short_texts_do_not_wait_for_long_ones() {
    // The 99th percentile in milliseconds, at most, and that of arrival order, at least.
    let loads = [
        (1, 512, 60.0, 300.0),
        (2, 256, 60.0, 80.0),
        (2, 512, 60.0, 150.0),
        (2, 8192, 30.0, 1000.0),
        (4, 512, 60.0, 80.0),
        (16, 512, 30.0, 0.0),
        (64, 512, 30.0, 0.0),
    ];
    for (cores, long_tokens, max, min_of_arrival_order) in loads {
        let clients = [Client { long_tokens, ..SHORT }.with_load(0.7, cores)];
        let is_short = |text: &Done| text.tokens == SHORT.tokens;
        let by_deadline = p99(&run(cores, &clients, 6000), is_short);
        let by_arrival = p99(&run_in_arrival_order(cores, &clients, 6000), is_short);
        assert!(by_deadline <= max, "{cores} cores, {long_tokens} tokens: {by_deadline} ms");
        assert!(by_arrival >= min_of_arrival_order, "{cores} cores, {long_tokens} tokens: {by_arrival} ms");
    }
}

#[test]
fn short_texts_have_cores_beside_many_long_texts() {
    let long = Client { texts: 1, tokens: 8192, long_tokens: 8192, per_second: None };
    for (cores, max) in [(8, 80.0), (16, 30.0), (64, 30.0)] {
        let done = run(cores, &[SHORT.with_load(0.4, cores), long.with_load(0.3, cores)], 20_000);
        let latency = p99(&done, |text| text.client == 0);
        assert!(latency <= max, "{cores} cores: {latency} ms");
    }
}

#[test]
fn busy_workers_have_the_throughput_of_arrival_order() {
    let loads = [
        (2, 64, SHORT),
        (2, 64, Client { long_tokens: 256, ..SHORT }),
        (2, 64, Client { long_tokens: 512, ..SHORT }),
        (2, 64, Client { long_tokens: 8192, ..SHORT }),
        (8, 256, Client { long_tokens: 512, ..SHORT }),
        (1, 16, Client { texts: 32, ..SHORT }),
        (2, 16, Client { texts: 32, ..SHORT }),
        (4, 16, Client { texts: 32, ..SHORT }),
        (16, 16, Client { texts: 32, ..SHORT }),
    ];
    for (cores, clients, client) in loads {
        let clients = vec![client; clients];
        let by_deadline = throughput(&run(cores, &clients, 8000), |_| true);
        let by_arrival = throughput(&run_in_arrival_order(cores, &clients, 8000), |_| true);
        let Client { texts, long_tokens, .. } = client;
        assert!(
            by_deadline >= 0.98 * by_arrival,
            "{cores} cores, {texts} texts, {long_tokens} tokens: {by_deadline}, {by_arrival}"
        );
    }
}

#[test]
fn large_requests_take_what_short_ones_leave() {
    let loads = [
        (1, 1, 18),
        (2, 1, 18),
        (2, 4, 18),
        (2, 32, 18),
        (2, 1, 128),
        (2, 2, 256),
        (16, 4, 18),
        (64, 16, 18),
    ];
    for (cores, clients, tokens) in loads {
        let large = vec![Client { texts: 512, tokens, long_tokens: tokens, per_second: None }; clients];
        let mut all = large.clone();
        all.push(SHORT.with_load(0.3, cores));
        let done = run(cores, &all, 12_000);
        let latency = p99(&done, |text| text.client == clients);
        let rest = 0.7 * throughput(&run(cores, &large, 6000), |_| true);
        let large = throughput(&done, |text| text.client < clients);
        assert!(latency <= 70.0, "{cores} cores, {clients} clients, {tokens} tokens: {latency} ms");
        assert!(large >= 0.9 * rest, "{cores} cores, {clients} clients, {tokens} tokens: {large} of {rest}");
    }
}

#[test]
fn no_text_starves_under_twice_the_load() {
    for (cores, long_tokens, large_clients) in
        [(1, 512, 0), (1, 8192, 0), (2, 18, 0), (2, 18, 1), (2, 512, 0), (2, 8192, 0), (16, 512, 0)]
    {
        let mut clients = vec![Client { texts: 512, ..SHORT }; large_clients];
        clients.push(Client { long_tokens, ..SHORT }.with_load(2.0, cores));
        let per_second = RATE * cores as f64;
        let max_waiting_tokens = 2 * per_second as usize;
        let done = Simulation::new(schedule(cores), cores, &clients).run_overloaded(8000, max_waiting_tokens);
        let goodput = throughput(&done, |_| true) / per_second;
        assert!(goodput >= 0.95, "{cores} cores, {long_tokens} tokens: {goodput}");
        for text in &done {
            let tokens = clients[text.client].texts * text.tokens;
            // Until its deadline, and then what waits at that time, on cores that short texts share.
            let bound = SLACK_FACTOR * tokens as f64 / per_second + 2.0 * (cores + 1) as f64 / cores as f64;
            assert!(
                text.latency <= bound,
                "{cores} cores: {tokens} tokens took {} s of {bound}",
                text.latency
            );
        }
    }
}
