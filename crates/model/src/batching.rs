//! The model of batching and pipelining (Santos 2012, chapter 8): how long an instance of consensus keeps the leader's
//! processor and its network busy, how long it takes, and how many instances must run at once to leave neither idle.
//!
//! The model assumes one leader, one processor, equal requests, no loss, and a load that fills every batch. Its
//! critical resources are the leader's processor and the leader's outgoing channel. One term is not the document's: a
//! cost for each burst ([`Costs::burst`]), which measurements of Synod show. With that cost at zero the model is the
//! printed one.

/// A cost that grows with bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Linear {
    /// Seconds for each byte.
    pub per_byte: f64,
    /// Seconds whatever the size.
    pub fixed: f64,
}

impl Linear {
    /// Seconds for `bytes`.
    #[must_use]
    pub fn of(self, bytes: f64) -> f64 {
        self.per_byte * bytes + self.fixed
    }
}

/// What work costs the leader's processor, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Receiving a request and sending its answer, by the bytes of both (`φ_cli`).
    pub client: Linear,
    /// Exchanging one proposal and one vote with one replica, by the bytes of both (`φ_rep`).
    pub replica: Linear,
    /// Executing a request (`φ_exec`).
    pub execute: f64,
    /// Handling what has come together, once an instance. The document has no such term.
    pub burst: f64,
}

/// What messages hold besides requests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Headers {
    /// Of each request in a batch.
    pub request: f64,
    /// Of each batch.
    pub batch: f64,
    /// A whole vote (`S_2b`).
    pub vote: f64,
}

/// How the replicas are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// One network card of the leader carries everything, also answers to clients.
    Local,
    /// Each link between data centres has a bandwidth of its own, and clients are near.
    Wide,
}

/// The replicas and what connects them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// Replicas (`n`).
    pub replicas: usize,
    /// How they are connected.
    pub network: Network,
    /// Bytes a second of the channel (`B`).
    pub bandwidth: f64,
    /// Seconds from one replica to another (`L`).
    pub delay: f64,
}

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Bytes of a request (`S_req`).
    pub request: f64,
    /// Bytes of an answer (`S_ans`).
    pub answer: f64,
}

/// What determines how long an instance takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The leader's processor.
    Processor,
    /// The leader's outgoing channel.
    Bandwidth,
    /// The round trip.
    Latency,
}

/// An instance of consensus on a batch, as the model foretells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Instance {
    /// Requests in its batch (`k`).
    pub requests: f64,
    /// Bytes of a proposal (`S_2a`).
    pub proposal: f64,
    /// Seconds that it keeps the leader's processor busy (`φ_inst^CPU`, equation 8.1).
    pub processor: f64,
    /// Seconds that it keeps the leader's channel busy (`φ_inst^NET`).
    pub channel: f64,
    /// Seconds that it takes at the leader (`T_inst`, equation 8.2).
    pub duration: f64,
    /// What `duration` is bound by.
    pub bound: Bound,
}

/// How much more than a whole number of instances asks for one more. Equation 8.10 rounds up whatever is left over, and
/// so asks for two instances where the document measures that one is best (its Table 8.3 keeps 1.00 to 1.18).
const WINDOW_TOLERANCE: f64 = 0.25;

impl Instance {
    /// Foretells an instance on `requests` equal requests (equations 8.1 to 8.9).
    ///
    /// `None` outside the model's range: no request, no replica, or a figure that is negative or not finite; a
    /// bandwidth must be above zero, and infinity stands for a channel without a limit.
    #[must_use]
    pub fn foretell(
        deployment: &Deployment,
        load: &Load,
        headers: &Headers,
        costs: &Costs,
        requests: u32,
    ) -> Option<Instance> {
        if !in_range(deployment, load, headers, costs) || requests == 0 {
            return None;
        }
        let k = f64::from(requests);
        let &Deployment { replicas, network, bandwidth, delay } = deployment;
        let others = (replicas - 1) as f64;
        let majority_of_others = (replicas / 2) as f64;
        let proposal = k * (load.request + headers.request) + headers.batch;
        let from_clients = k * costs.client.of(load.request + headers.request + load.answer);
        let with_replicas = others * costs.replica.of(proposal + headers.vote);
        let processor = from_clients + with_replicas + k * costs.execute + costs.burst;
        let (channel, idle, out, answers) = match network {
            Network::Local => (
                (others * proposal + k * load.answer) / bandwidth,
                // The processor waits while the first proposals leave.
                majority_of_others * proposal / (2.0 * bandwidth),
                majority_of_others * proposal / bandwidth,
                k * load.answer / bandwidth,
            ),
            Network::Wide => {
                let one = if replicas > 1 { proposal / bandwidth } else { 0.0 };
                (one, one, one, 0.0)
            }
        };
        let round_trip = if replicas > 1 { 2.0 * delay } else { 0.0 };
        let candidates = [
            (processor + idle, Bound::Processor),
            (channel, Bound::Bandwidth),
            (out + round_trip + k * costs.execute + answers, Bound::Latency),
        ];
        let (duration, bound) = candidates.into_iter().max_by(|one, other| one.0.total_cmp(&other.0))?;
        Some(Instance { requests: k, proposal, processor, channel, duration, bound })
    }

    /// How many instances at once the processor could sustain (`w^CPU`).
    #[must_use]
    pub fn window_of_processor(&self) -> f64 {
        self.duration / self.processor
    }

    /// How many instances at once the channel could sustain (`w^NET`).
    #[must_use]
    pub fn window_of_channel(&self) -> f64 {
        self.duration / self.channel
    }

    /// The smallest number of instances at once that leaves the bottleneck no pause (equation 8.10, with a tolerance: a
    /// quarter of an instance more asks for no whole one).
    #[must_use]
    pub fn window(&self) -> u32 {
        let sustained = self.window_of_processor().min(self.window_of_channel());
        // Saturates, and is at least 1 whatever the costs are.
        ((sustained - WINDOW_TOLERANCE).ceil() as u32).max(1)
    }

    /// Requests a second with a window that leaves the bottleneck no pause.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        self.requests / self.processor.max(self.channel)
    }

    /// Requests a second with `window` instances at once.
    #[must_use]
    pub fn requests_per_second_with(&self, window: u32) -> f64 {
        (f64::from(window) * self.requests / self.duration).min(self.requests_per_second())
    }
}

fn in_range(deployment: &Deployment, load: &Load, headers: &Headers, costs: &Costs) -> bool {
    let amounts = [
        load.request,
        load.answer,
        headers.request,
        headers.batch,
        headers.vote,
        costs.client.per_byte,
        costs.client.fixed,
        costs.replica.per_byte,
        costs.replica.fixed,
        costs.execute,
        costs.burst,
        deployment.delay,
    ];
    deployment.replicas > 0
        && deployment.bandwidth > 0.0
        && amounts.iter().all(|amount| amount.is_finite() && *amount >= 0.0)
}

/// The largest batch, in requests, of which the first request is answered within `target` seconds when `rate` requests
/// come a second (Santos 2012, section 8.6, step 2): the batch fills first, and is then ordered.
///
/// `None` if not even a batch of one request meets the target, or if the model does not apply.
#[must_use]
pub fn largest_batch(
    deployment: &Deployment,
    load: &Load,
    headers: &Headers,
    costs: &Costs,
    (target, rate): (f64, f64),
) -> Option<u32> {
    let meets = |requests: u32| {
        let fill = f64::from(requests - 1) / rate;
        let ordered = Instance::foretell(deployment, load, headers, costs, requests)?;
        Some(fill + ordered.duration <= target)
    };
    if !meets(1)? {
        return None;
    }
    // Filling and ordering both take longer with each request, so the largest is found by halving.
    let (mut within, mut beyond) = (1_u32, 2_u32);
    while beyond < REQUESTS_MAX && meets(beyond)? {
        within = beyond;
        beyond *= 2;
    }
    while beyond - within > 1 {
        let middle = within + (beyond - within) / 2;
        if meets(middle)? {
            within = middle;
        } else {
            beyond = middle;
        }
    }
    Some(within)
}

/// The largest batch that [`largest_batch`] considers, in requests.
const REQUESTS_MAX: u32 = 1 << 20;

