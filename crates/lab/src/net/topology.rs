//! The description of a network: sites, and the links between them. The relay and virtual time read the same file.

use std::{fs, path::Path, time::Duration};

use serde::Deserialize;

use crate::study::{LabError, at};

/// Networks that come with the lab.
const SHIPPED: &[(&str, &str)] = &[
    ("single-dc", include_str!("../../topologies/single-dc.toml")),
    ("geo", include_str!("../../topologies/geo.toml")),
    ("trans-pacific", include_str!("../../topologies/trans-pacific.toml")),
    ("one-machine", include_str!("../../topologies/one-machine.toml")),
    ("regions", include_str!("../../topologies/regions.toml")),
    ("narrow-path", include_str!("../../topologies/narrow-path.toml")),
    ("emulab", include_str!("../../topologies/emulab.toml")),
];

/// One direction between two places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The delay of a byte.
    pub delay: Duration,
    /// The largest additional delay, evenly distributed. Bytes stay in order.
    pub jitter: Duration,
    /// Bytes a second; 0 for no limit.
    pub bytes_per_second: u64,
    /// The probability that a piece of at most 64 KiB is lost. TCP hides a lost packet, so a replica sees
    /// loss only as the end of a session: the connection is reset.
    pub loss: f64,
    /// Whether the link is cut: nothing gets through, and sent bytes wait.
    pub cut: bool,
}

impl Link {
    /// A link that changes nothing.
    pub const CLEAR: Link =
        Link { delay: Duration::ZERO, jitter: Duration::ZERO, bytes_per_second: 0, loss: 0.0, cut: false };
}

/// The links among replicas: `links[from][to]`.
pub type Links = Vec<Vec<Link>>;

/// A network that was read from a description.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    name: String,
    file: File,
}

/// The contents of a description file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    /// The real network that it stands for.
    about: String,
    /// The sites of the replicas, in the order of their ids; repeated if there are more replicas.
    replicas: Vec<String>,
    /// The client's site.
    client: String,
    /// The values for links that state no others.
    #[serde(default)]
    default: Figures,
    /// Links between sites, in both directions unless `one-way`.
    link: Vec<Between>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Figures {
    delay_ms: Option<f64>,
    jitter_ms: Option<f64>,
    megabits_per_second: Option<f64>,
    loss: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Between {
    from: String,
    to: String,
    /// Half of the round trip.
    delay_ms: Option<f64>,
    jitter_ms: Option<f64>,
    megabits_per_second: Option<f64>,
    loss: Option<f64>,
    #[serde(default)]
    one_way: bool,
}

impl Topology {
    /// Finds a network that comes with the lab, or reads a file.
    ///
    /// # Errors
    /// There is no such network or file, or it is not valid.
    pub fn named(name: &str) -> Result<Topology, LabError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Topology::parse(name, text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "toml") {
            let shipped: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
            let why = format!("accepted: {}, or a file whose name ends with .toml", shipped.join(", "));
            return Err(LabError::Topology { name: name.to_owned(), why });
        }
        Topology::parse(name, &fs::read_to_string(path).map_err(at(path))?)
    }

    /// Reads a description.
    ///
    /// # Errors
    /// The description is not valid.
    pub fn parse(name: &str, text: &str) -> Result<Topology, LabError> {
        let wrong = |why: String| LabError::Topology { name: name.to_owned(), why };
        let file: File = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if file.replicas.is_empty() {
            return Err(wrong("replicas is empty; name at least one site".to_owned()));
        }
        let topology = Topology { name: name.to_owned(), file };
        // Every question that can be asked of it later is asked once here, so that errors show now.
        topology.links(topology.file.replicas.len())?;
        let known: Vec<&str> = topology.sites().collect();
        let stranger = {
            let mut ends = topology.file.link.iter().flat_map(|link| [&link.from, &link.to]);
            ends.find(|end| !known.contains(&end.as_str()))
        };
        if let Some(end) = stranger {
            return Err(wrong(format!(
                "link names '{end}', where there is nobody; sites: {}",
                known.join(", ")
            )));
        }
        for index in 0..topology.file.replicas.len() {
            topology.client_way(index)?;
        }
        Ok(topology)
    }

    /// The same network, where replicas that follow each other at a site count as one: replicas then go to the sites in
    /// turn.
    #[must_use]
    pub fn in_turn(mut self) -> Topology {
        self.file.replicas.dedup();
        self
    }

    /// Its name, or its file's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The real network that it stands for.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.file.about
    }

    fn sites(&self) -> impl Iterator<Item = &str> {
        self.file.replicas.iter().chain([&self.file.client]).map(String::as_str)
    }

    /// The site of a replica, by its index.
    #[must_use]
    pub fn site(&self, replica: usize) -> &str {
        &self.file.replicas[replica % self.file.replicas.len()]
    }

    /// The links among this many replicas.
    ///
    /// # Errors
    /// Two sites are not connected.
    pub fn links(&self, replicas: usize) -> Result<Links, LabError> {
        let row =
            |from| (0..replicas).map(move |to| self.between(self.site(from), self.site(to), from == to));
        (0..replicas).map(|from| row(from).collect()).collect()
    }

    /// The links among this many replicas and the client, which has the last place.
    ///
    /// # Errors
    /// Those of [`Topology::links`], or client and replica are not connected.
    pub fn links_with_client(&self, replicas: usize) -> Result<Links, LabError> {
        let mut links = self.links(replicas)?;
        let client = &self.file.client;
        for (place, row) in links.iter_mut().enumerate() {
            row.push(self.between(self.site(place), client, false)?);
        }
        let mut own: Vec<_> = (0..replicas)
            .map(|place| self.between(client, self.site(place), false))
            .collect::<Result<_, _>>()?;
        own.push(Link::CLEAR);
        links.push(own);
        Ok(links)
    }

    /// The delays of a message from the client to a replica, and of the answer.
    ///
    /// # Errors
    /// Client and replica are not connected.
    pub fn client_way(&self, replica: usize) -> Result<(Duration, Duration), LabError> {
        let (client, site) = (self.file.client.as_str(), self.site(replica));
        Ok((self.between(client, site, false)?.delay, self.between(site, client, false)?.delay))
    }

    fn between(&self, from: &str, to: &str, same: bool) -> Result<Link, LabError> {
        let wrong = |why: String| LabError::Topology { name: self.name.clone(), why };
        let mut found = self.file.link.iter().filter(|link| {
            (link.from == from && link.to == to) || (!link.one_way && link.from == to && link.to == from)
        });
        let (link, another) = (found.next(), found.next());
        if another.is_some() {
            return Err(wrong(format!("there are two links from {from} to {to}")));
        }
        if link.is_none() && from != to && !same {
            return Err(wrong(format!("there is no link from {from} to {to}")));
        }
        let default = &self.file.default;
        let pick = |own: Option<f64>, default: Option<f64>| own.or(default).unwrap_or(0.0);
        let figure = |of: fn(&Between) -> Option<f64>| link.and_then(of);
        let time = |milliseconds: f64, key: &str| {
            let fits = (0.0..=60_000.0).contains(&milliseconds);
            fits.then(|| Duration::from_secs_f64(milliseconds / 1e3))
                .ok_or_else(|| wrong(format!("{key} is {milliseconds}; accepted: 0 to 60000")))
        };
        let megabits = pick(figure(|link| link.megabits_per_second), default.megabits_per_second);
        let loss = pick(figure(|link| link.loss), default.loss);
        if !(0.0..=1.0).contains(&loss) || !(0.0..=1e6).contains(&megabits) {
            return Err(wrong(format!(
                "loss is {loss} (accepted: 0 to 1), megabits-per-second {megabits} (accepted: 0 to 1000000)"
            )));
        }
        Ok(Link {
            delay: time(pick(figure(|link| link.delay_ms), default.delay_ms), "delay-ms")?,
            jitter: time(pick(figure(|link| link.jitter_ms), default.jitter_ms), "jitter-ms")?,
            bytes_per_second: (megabits * 125_000.0) as u64,
            loss,
            cut: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_networks_are_well_formed() {
        for (name, _) in SHIPPED {
            let topology = Topology::named(name).unwrap();
            assert!(!topology.about().is_empty());
            assert_eq!(topology.links(5).unwrap().len(), 5);
        }
    }

    /// The document's latencies are sums of round trips: client to leader, and leader to the nearest replica.
    #[test]
    fn the_distances_of_geo_give_the_latencies_of_the_document() {
        let geo = Topology::named("geo").unwrap();
        let links = geo.links(3).unwrap();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut latencies = Vec::new();
        for (leader, row) in links.iter().enumerate() {
            let (to, from) = geo.client_way(leader).unwrap();
            let others = (0..3).filter(|&other| other != leader);
            let nearest = others.map(|other| row[other].delay + links[other][leader].delay).min().unwrap();
            latencies.push((geo.site(leader).to_owned(), (ms(to + from + nearest)).round()));
        }
        latencies.sort_by(|a, b| a.1.total_cmp(&b.1));
        let expected = [("california", 280.0), ("sydney", 402.0), ("cape-town", 445.0)];
        assert_eq!(latencies, expected.map(|(site, ms)| (site.to_owned(), ms)));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let base = "about = 'x'\nreplicas = ['a', 'b']\nclient = 'a'\n";
        let cases = [
            (format!("{base}link = []"), "there is no link from a to b"),
            (format!("{base}[[link]]\nfrom='a'\nto='b'\ndelay-ms=-1"), "accepted: 0 to 60000"),
            (format!("{base}[[link]]\nfrom='a'\nto='b'\nloss=2.0"), "loss is 2"),
            (format!("{base}[[link]]\nfrom='a'\nto='b'\n[[link]]\nfrom='b'\nto='a'"), "two links"),
            (
                format!("{base}[[link]]\nfrom='a'\nto='b'\n[[link]]\nfrom='a'\nto='c'"),
                "'c', where there is nobody",
            ),
            (format!("{base}[[link]]\nfrom='a'\nto='b'\ndelay=1"), "unknown field `delay`"),
            ("about='x'\nreplicas=[]\nclient='a'\nlink=[]".to_owned(), "replicas is empty"),
        ];
        for (text, expected) in cases {
            let error = Topology::parse("test", &text).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error} does not say: {expected}");
        }
        assert!(Topology::named("moon").unwrap_err().to_string().contains("accepted: single-dc, geo"));
    }

    #[test]
    fn a_direction_may_differ() {
        let text = "about = 'x'\nreplicas = ['a', 'b']\nclient = 'a'\n[default]\njitter-ms = 2\n\
                    [[link]]\nfrom = 'a'\nto = 'b'\none-way = true\ndelay-ms = 10\nmegabits-per-second = 8\n\
                    [[link]]\nfrom = 'b'\nto = 'a'\none-way = true\ndelay-ms = 30\nloss = 0.5";
        let links = Topology::parse("test", text).unwrap().links(2).unwrap();
        let jitter = Duration::from_millis(2);
        let there =
            Link { delay: Duration::from_millis(10), jitter, bytes_per_second: 1_000_000, ..Link::CLEAR };
        let back = Link { delay: Duration::from_millis(30), jitter, loss: 0.5, ..Link::CLEAR };
        assert_eq!((links[0][1], links[1][0]), (there, back));
        let with_client = Topology::parse("test", text).unwrap().links_with_client(2).unwrap();
        assert_eq!((with_client.len(), with_client[2][1], with_client[1][2]), (3, there, back));
    }
}
