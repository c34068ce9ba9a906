//! Saving, in two parts: what must be done where the tensors are, and what any thread can do later.

use super::draft::Draft;
use super::index::{Entry, Index, Stored};
use super::placed;
use super::plan::{Holding, Planned, plan};
use super::write::{self, Part};
use crate::StateDict;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xla_core::{Error, Result};
use xla_dist::ProcessGroup;

/// What is saved where.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// The call, for errors.
    pub(crate) op: &'static str,
    /// The checkpoint's folder.
    pub(crate) target: &'a Path,
    pub(crate) step: Option<u64>,
    /// Its place among the checkpoints beside it, or why there is none for it. The first rank's
    /// counts.
    pub(crate) saved: Result<u64>,
    /// Those who save it together; `None` for this replica alone.
    pub(crate) group: Option<&'a Arc<ProcessGroup>>,
}

/// A state on its way to the disk: what this process writes of it is on the host.
#[derive(Debug)]
pub(crate) struct Save {
    op: &'static str,
    /// Where the files go until all are written.
    folder: PathBuf,
    /// On the first rank.
    draft: Option<Draft>,
    step: Option<u64>,
    saved: u64,
    metadata: BTreeMap<String, String>,
    plan: Vec<Planned>,
    /// Kept until the others can be told.
    parts: Result<Vec<Part>>,
    others: Option<Others>,
}

/// The ranks that save together.
#[derive(Debug)]
struct Others {
    group: Arc<ProcessGroup>,
    own: usize,
    /// Names this save among all of the group.
    tag: String,
}

/// What each rank tells the others before anything is written.
#[derive(Serialize, Deserialize)]
struct Announcement {
    target: PathBuf,
    /// What it has, or why it cannot save.
    contents: Result<Contents, String>,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    /// The first rank's, for all.
    folder: Option<PathBuf>,
    holdings: Vec<Holding>,
    metadata: BTreeMap<String, String>,
}

/// What a rank has when it can save.
struct Ready {
    draft: Option<Draft>,
    holdings: Vec<Holding>,
    state: StateDict,
    saved: u64,
}

impl Save {
    /// Agrees with the other ranks on who writes what, and copies what is this one's to the host.
    /// With a group, its members must all call it.
    pub(crate) fn prepare(order: Order<'_>, state: Result<StateDict>) -> Result<Save> {
        let Order {
            op,
            target,
            step,
            saved,
            group,
        } = order;
        let group = group.filter(|group| group.size() > 1);
        let own = match group {
            Some(group) => group.group_rank(group.rank())?,
            None => 0,
        };
        // What fails from here on the others have to hear of: they wait.
        let ready = || -> Result<Ready> {
            let (state, saved) = (state?, saved?);
            Ok(Ready {
                draft: (own == 0).then(|| Draft::new(target)).transpose()?,
                holdings: holdings(&state)?,
                state,
                saved,
            })
        };
        let ready = ready();
        let Some(group) = group else {
            let Ready {
                draft,
                holdings,
                state,
                saved,
            } = ready?;
            let plan = plan(op, &[holdings])?;
            return Ok(Save {
                op,
                folder: draft
                    .as_ref()
                    .map(|d| d.path().to_owned())
                    .unwrap_or_default(),
                draft,
                step,
                saved,
                metadata: state.metadata().clone(),
                parts: parts(&state, &plan, own),
                plan,
                others: None,
            });
        };
        let announcement = Announcement {
            target: target.to_owned(),
            contents: match &ready {
                Ok(ready) => Ok(Contents {
                    folder: ready.draft.as_ref().map(|draft| draft.path().to_owned()),
                    holdings: ready.holdings.clone(),
                    metadata: ready.state.metadata().clone(),
                }),
                Err(error) => Err(error.to_string()),
            },
        };
        let all: Vec<Announcement> = group.all_gather_object(&announcement)?;
        let Ready {
            draft,
            state,
            saved,
            ..
        } = ready?;
        let mut metadata = BTreeMap::new();
        let mut writers = Vec::with_capacity(all.len());
        let mut folder = None;
        for (position, told) in all.into_iter().enumerate() {
            if told.target != target {
                let expected = format!("{} as on rank {}", target.display(), group.rank());
                let got = told.target.display().to_string();
                return Err(Error::argument(op, "folder", expected, got));
            }
            let told = told
                .contents
                .map_err(|message| failed(group, position, message))?;
            writers.push(told.holdings);
            folder = folder.or(told.folder);
            for (name, word) in told.metadata {
                metadata.entry(name).or_insert(word);
            }
        }
        let Some(folder) = folder else {
            return Err(Error::Internal {
                what: op,
                expected: "a folder from the first rank".into(),
            });
        };
        let plan = plan(op, &writers)?;
        Ok(Save {
            op,
            draft,
            step,
            saved,
            metadata,
            parts: parts(&state, &plan, own),
            plan,
            others: Some(Others {
                group: Arc::clone(group),
                own,
                // The folder's random name is nobody else's.
                tag: folder.display().to_string(),
            }),
            folder,
        })
    }

    /// Writes what is this rank's, waits for the others, and has the first of them publish it.
    pub(crate) fn finish(self) -> Result<()> {
        let own = self.others.as_ref().map_or(0, |others| others.own);
        let parts = self.parts.as_ref().map_err(Clone::clone);
        let written = parts.and_then(|parts| write::write(self.op, &self.folder, own, parts));
        let Some(Others { group, tag, .. }) = &self.others else {
            let index = self.index([written?]);
            return match self.draft {
                Some(draft) => draft.publish(&index),
                None => Ok(()),
            };
        };
        let told = written.as_ref().map_err(Error::to_string);
        let all: Vec<Result<Vec<(usize, Stored)>, String>> =
            group.all_gather_object_as(&format!("{tag}/written"), &told)?;
        let everybody = all
            .into_iter()
            .enumerate()
            .map(|(position, told)| told.map_err(|message| failed(group, position, message)))
            .collect::<Result<Vec<_>>>();
        // Its own error in its own words.
        written?;
        let index = self.index(everybody?);
        let published = self.draft.map(|draft| draft.publish(&index));
        let told: Option<Result<(), String>> = published
            .as_ref()
            .map(|outcome| outcome.as_ref().map(|_| ()).map_err(Error::to_string));
        let all: Vec<Option<Result<(), String>>> =
            group.all_gather_object_as(&format!("{tag}/published"), &told)?;
        match (published, all.into_iter().flatten().next()) {
            (Some(outcome), _) => outcome,
            (None, Some(Err(message))) => Err(failed(group, 0, message)),
            (None, _) => Ok(()),
        }
    }

    fn index(&self, written: impl IntoIterator<Item = Vec<(usize, Stored)>>) -> Index {
        let mut tensors: Vec<Entry> = self
            .plan
            .iter()
            .map(|planned| Entry {
                name: planned.name.clone(),
                dtype: planned.dtype,
                shape: planned.shape.clone(),
                blocks: Vec::new(),
            })
            .collect();
        for (tensor, stored) in written.into_iter().flatten() {
            if let Some(entry) = tensors.get_mut(tensor) {
                entry.blocks.push(stored);
            }
        }
        let start = |stored: &Stored| -> Vec<usize> {
            stored.block.iter().map(|range| range.start).collect()
        };
        for entry in &mut tensors {
            entry.blocks.sort_by_key(start);
        }
        Index::new(self.step, self.saved, self.metadata.clone(), tensors)
    }
}

fn failed(group: &ProcessGroup, position: usize, message: String) -> Error {
    let rank = group.ranks().get(position).copied().unwrap_or(position);
    Error::ReplicaFailed { rank, message }
}

fn holdings(state: &StateDict) -> Result<Vec<Holding>> {
    state
        .iter()
        .map(|(name, tensor)| {
            Ok(Holding {
                name: name.to_owned(),
                dtype: tensor.dtype(),
                shape: tensor.dims().to_vec(),
                blocks: placed::blocks_of(tensor)?,
            })
        })
        .collect()
}

/// What a writer writes of the plan.
fn parts(state: &StateDict, plan: &[Planned], writer: usize) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for (index, planned) in plan.iter().enumerate() {
        let own = planned.blocks.iter().filter(|b| b.writer == writer);
        let own: Vec<_> = own.map(|assigned| &assigned.block).collect();
        let Some(tensor) = state.get(&planned.name).filter(|_| !own.is_empty()) else {
            continue;
        };
        let literals = placed::literals_of(tensor, &own)?;
        let named = own.into_iter().zip(literals).map(|(block, literal)| Part {
            tensor: index,
            name: planned.name.clone(),
            whole: planned.blocks.len() == 1,
            block: block.clone(),
            literal,
        });
        parts.extend(named);
    }
    Ok(parts)
}
