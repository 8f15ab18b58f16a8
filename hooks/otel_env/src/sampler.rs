//! Samplers that the environment may name.

use super::{Reader, TRACES_SAMPLER, TRACES_SAMPLER_ARG};

/// Sampler that `OTEL_TRACES_SAMPLER` names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// True if a span with a parent is sampled as that is.
    pub follows_parent: bool,
    /// Sampling of a span that has no parent, or whose parent does not matter.
    pub root: Root,
}

/// Sampling of the first span of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Root {
    /// Always.
    Always,
    /// Never.
    Never,
    /// By its trace id, at a ratio from 0 to 1.
    Ratio(f64),
}

impl Root {
    /// Returns the share of traces that are sampled.
    pub fn ratio(self) -> f64 {
        match self {
            Root::Always => 1.0,
            Root::Never => 0.0,
            Root::Ratio(ratio) => ratio,
        }
    }
}

impl Reader<'_> {
    /// `OTEL_TRACES_SAMPLER` and its argument; none when nothing is said, or a name that is not known.
    pub fn sampler(&mut self) -> Option<Sampler> {
        let Some(name) = self.text(TRACES_SAMPLER) else {
            if self.text(TRACES_SAMPLER_ARG).is_some() {
                self.complain(TRACES_SAMPLER_ARG, "is ignored, because `OTEL_TRACES_SAMPLER` is not set");
            }
            return None;
        };
        let (follows_parent, root) = match name.to_ascii_lowercase().as_str() {
            "always_on" => (false, Root::Always),
            "always_off" => (false, Root::Never),
            "traceidratio" => (false, Root::Ratio(self.ratio())),
            "parentbased_always_on" => (true, Root::Always),
            "parentbased_always_off" => (true, Root::Never),
            "parentbased_traceidratio" => (true, Root::Ratio(self.ratio())),
            _ => {
                let known = "expected `always_on`, `always_off`, `traceidratio`, or one of them after `parentbased_`";
                self.complain(TRACES_SAMPLER, format!("is `{name}`, {known}; it is ignored"));
                return None;
            }
        };
        Some(Sampler { follows_parent, root })
    }

    /// Returns the ratio that a text says; one that says none is taken as 1, as the specification has it.
    fn ratio(&mut self) -> f64 {
        let Some(text) = self.text(TRACES_SAMPLER_ARG) else { return 1.0 };
        match text.parse::<f64>() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            _ => {
                let text = format!("is `{text}`, expected a number from 0 to 1; it counts as 1");
                self.complain(TRACES_SAMPLER_ARG, text);
                1.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::problems;

    fn read(name: &str, argument: &str) -> (Option<Sampler>, Vec<String>) {
        let mut reader = Reader::new(|variable| match variable {
            TRACES_SAMPLER => Some(name.into()),
            TRACES_SAMPLER_ARG => Some(argument.into()),
            _ => None,
        });
        (reader.sampler(), problems(reader))
    }

    #[test]
    fn the_six_samplers_are_known_in_any_case() {
        for (name, follows_parent, root) in [
            ("always_on", false, Root::Always),
            ("ALWAYS_OFF", false, Root::Never),
            ("traceidratio", false, Root::Ratio(0.25)),
            ("parentbased_always_on", true, Root::Always),
            ("parentbased_always_off", true, Root::Never),
            ("ParentBased_TraceIdRatio", true, Root::Ratio(0.25)),
        ] {
            assert_eq!(read(name, " 0.25 "), (Some(Sampler { follows_parent, root }), vec![]), "{name}");
        }
        assert_eq!(read("", ""), (None, vec![]));
        let expected = Sampler { follows_parent: false, root: Root::Ratio(1.0) };
        assert_eq!(read("traceidratio", ""), (Some(expected), vec![]));
    }

    #[test]
    fn an_unknown_sampler_is_ignored() {
        let (sampler, problems) = read("jaeger_remote", "");
        assert_eq!(sampler, None);
        let said = "`OTEL_TRACES_SAMPLER` is `jaeger_remote`, expected `always_on`, `always_off`, `traceidratio`, \
                    or one of them after `parentbased_`; it is ignored";
        assert_eq!(problems, [said]);
        let said = "`OTEL_TRACES_SAMPLER_ARG` is ignored, because `OTEL_TRACES_SAMPLER` is not set";
        assert_eq!(read("", "0.5"), (None, vec![said.to_owned()]));
    }

    #[test]
    fn what_is_no_ratio_counts_as_one() {
        for text in ["half", "1.5", "-0.1", "NaN", "inf"] {
            let (sampler, problems) = read("parentbased_traceidratio", text);
            assert_eq!(sampler.map(|sampler| sampler.root), Some(Root::Ratio(1.0)), "{text}");
            let said = format!("`OTEL_TRACES_SAMPLER_ARG` is `{text}`, expected a number from 0 to 1; it counts as 1");
            assert_eq!(problems, [said]);
        }
    }
}
