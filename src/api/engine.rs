//! Loads models and encodes texts, for all types of the library: the only file that knows how tasks are run.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::ThreadPool;

use super::error::{Error, ErrorKind};
use super::model::Model;
use crate::engine::{self, RowOptions, TaskInput, TaskRow, TextError, TextFault};
use crate::error::UsageError;
use crate::hub::{NoSuchModel, NotDownloaded, is_revision};
use crate::load::{Loaded, ModelOptions};
use crate::model::modules::Role;
use crate::named::Named;
use crate::neighbours::SparseVector;
use crate::nn::{Backend, Isa};
use crate::rows::{Content, VectorValues};
use crate::sys::console::Console;
use crate::sys::threads::compute_pool;
use crate::task::{self, ModelTask, OnLong, TextEncoder, VectorOptions};

/// A function of `task` that loads a model.
pub(super) type Load = fn(&ModelOptions, &Console) -> anyhow::Result<Loaded>;

/// A task with the threads that run it.
pub(super) struct Engine<T>(engine::Engine<T>);

/// What a text has become.
pub(super) struct Row {
    /// A vector, a score or labels.
    pub content: Content,
    /// Encoded tokens, including special tokens.
    pub tokens: usize,
    /// Tokens that truncation removed.
    pub truncated_tokens: usize,
}

/// What a model was opened with.
pub(super) struct Context {
    /// The warnings of the command line.
    pub warnings: Vec<String>,
    pool: Arc<ThreadPool>,
}

/// Loads a model, of which `set_up` makes something.
///
/// # Errors
/// If there is no such model, it cannot be loaded, or a choice contradicts it.
pub(super) fn open<T: Send>(
    model: &Model,
    load: Load,
    set_up: impl FnOnce(Loaded, &Console) -> anyhow::Result<T> + Send,
) -> Result<(T, Context), Error> {
    check(model)?;
    let pool = pool(model.threads)?;
    let console = Console::silent();
    let made = pool.install(|| load(&model.options, &console).and_then(|loaded| set_up(loaded, &console)));
    let made = made.map_err(|error| of_load(model, &error))?;
    Ok((made, Context { warnings: console.take_warnings(), pool }))
}

/// Refuses what the command line refuses before it loads a model, and what it cannot do here.
fn check(model: &Model) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidOption, &message));
    match model {
        Model { on_long: OnLong::Skip, .. } => refuse(
            "`on_long` skip leaves out texts, but a result has an entry for each text; choose error, truncate or mean",
        ),
        Model { threads: Some(0), .. } => refuse("`threads` is 0; pass a number from 1 on"),
        _ if model.options.max_length == Some(0) => refuse("`max_length` is 0; pass a number from 1 on"),
        _ if !is_revision(&model.options.source.revision) => {
            refuse("`revision` is not a branch, a tag or a commit; pass one, such as main")
        }
        _ => Ok(()),
    }
}

/// The threads that compute: one pool of the process, or with `threads` one of a model's own.
///
/// # Errors
/// If the system refuses the threads, or `SCONCE_ISA` names an instruction set that the processor does not
/// have.
pub(super) fn pool(threads: Option<usize>) -> Result<Arc<ThreadPool>, Error> {
    static SHARED: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);
    Isa::check().map_err(|message| Error::new(ErrorKind::InvalidOption, &message))?;
    let start = || match compute_pool(threads) {
        Ok(pool) => Ok(Arc::new(pool)),
        Err(error) => Err(Error::new(ErrorKind::Backend, &error)),
    };
    if threads.is_some() {
        return start();
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some(pool) => Ok(pool.clone()),
        None => Ok(shared.insert(start()?).clone()),
    }
}

impl<T: ModelTask> Engine<T> {
    /// An engine for a task that was made when a model was opened.
    ///
    /// # Errors
    /// If the smallest batch does not fit into memory.
    pub(super) fn new(task: T, context: &Context) -> Result<Self, Error> {
        let made = context.pool.install(|| task::engine(task));
        made.map(Engine).map_err(|error| Error::new(ErrorKind::Backend, &error))
    }

    /// The task.
    pub(super) fn task(&self) -> &T {
        self.0.task()
    }

    /// What each text becomes, in the order of the texts. The bits are those of the command line, whatever
    /// the number and the order of the texts.
    ///
    /// # Errors
    /// For the first text that cannot be encoded, is too long or becomes something that is not finite; if the
    /// device fails.
    pub(super) fn encode(&self, texts: &[TaskInput]) -> Result<Vec<Row>, Error> {
        let encoded = self.0.encode(texts, &RowOptions::default()).map_err(|error| self.failed(&error))?;
        let rows = encoded.into_iter().enumerate().map(|(index, text)| {
            // Without chunks and with one query, a text has one row.
            let Some(TaskRow { content, is_finite: true, .. }) = text.rows().first() else {
                return Err(self.failed(&TextError::not_finite(index, &self.task().content()).into()));
            };
            Ok(Row { content: content.clone(), tokens: text.tokens, truncated_tokens: text.truncated_tokens })
        });
        rows.collect()
    }

    /// The error of texts that cannot be encoded.
    fn failed(&self, error: &anyhow::Error) -> Error {
        let kind = match error.downcast_ref() {
            Some(&TextError { index, fault, .. }) => match fault {
                TextFault::TooLong { tokens, .. } => {
                    ErrorKind::TooLong { index, tokens, limit: self.task().model().tokenizer.max_length() }
                }
                TextFault::Invalid => ErrorKind::InvalidText { index },
                TextFault::NotFinite => ErrorKind::NotFinite { index },
            },
            None if error.is::<UsageError>() => ErrorKind::InvalidOption,
            None => ErrorKind::Backend,
        };
        Error::new(kind, &format!("{error:#}"))
    }
}

/// Texts without choices of their own.
pub(super) fn inputs<T: AsRef<str>>(texts: &[T]) -> Vec<TaskInput<'_>> {
    texts.iter().map(|text| TaskInput::new(text.as_ref())).collect()
}

/// A model that turns texts into vectors, and how it reads queries.
pub(super) struct TextEngine {
    own: Engine<TextEncoder>,
    /// Whether the model treats queries in another way than its own texts.
    has_queries: bool,
    /// Whether the user chose the prompt, which queries have, too.
    has_chosen_prompt: bool,
}

impl TextEngine {
    /// `encoder` for texts, and for queries in another way if `has_queries`.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub(super) fn new(
        encoder: TextEncoder,
        has_queries: bool,
        options: &VectorOptions,
        context: &Context,
    ) -> Result<Self, Error> {
        let own = Engine::new(encoder, context)?;
        Ok(TextEngine { own, has_queries, has_chosen_prompt: options.prompt.is_some() })
    }

    /// What encodes texts as they were opened for.
    pub(super) fn own(&self) -> &Engine<TextEncoder> {
        &self.own
    }

    /// What each query becomes.
    ///
    /// # Errors
    /// As [`Engine::encode`].
    pub(super) fn encode_queries<T: AsRef<str>>(&self, queries: &[T]) -> Result<Vec<Row>, Error> {
        let mut inputs = inputs(queries);
        if self.has_queries {
            let prompt = self.has_chosen_prompt.then(|| self.own.task().prompt());
            for input in &mut inputs {
                (input.role, input.prompt) = (Some(Role::Query), prompt);
            }
        }
        self.own.encode(&inputs)
    }
}

/// Whether a model treats queries in another way than texts of `role`, and of no role.
pub(super) fn has_queries(loaded: &Loaded, role: Option<Role>) -> bool {
    let modules = &loaded.modules;
    let has_own_files = modules.multi_vector.is_some()
        || loaded.static_queries.is_some()
        || modules.role_lengths.iter().any(Option::is_some)
        || modules.prompts.get(Role::Query.name()).is_some();
    match role {
        Some(Role::Query) => false,
        Some(Role::Document) => has_own_files || !modules.prompts.of_role(Role::Document).1.is_empty(),
        None => has_own_files,
    }
}

/// The vector of a row: dense, or those of its tokens, concatenated.
pub(super) fn dense(content: Content) -> Vec<f32> {
    match content {
        Content::Vector(stored) => match stored.values {
            VectorValues::F32(values) => values,
            VectorValues::F16(_) | VectorValues::Int8(_) | VectorValues::Uint8(_) => {
                unreachable!("vectors are asked for in f32")
            }
        },
        _ => unreachable!("the task gives vectors"),
    }
}

/// The sparse vector of a row.
pub(super) fn sparse(content: Content) -> SparseVector {
    match content {
        Content::Sparse(vector) => *vector,
        _ => unreachable!("the task gives sparse vectors"),
    }
}

/// The error of a model that cannot be opened.
fn of_load(model: &Model, error: &anyhow::Error) -> Error {
    let has_no_device = || Backend::open(&model.options.device, model.options.compute_dtype).is_err();
    let kind = match () {
        () if error.is::<UsageError>() => ErrorKind::InvalidOption,
        () if error.is::<NoSuchModel>() => ErrorKind::ModelNotFound,
        () if error.is::<NotDownloaded>() => ErrorKind::Download,
        () if has_no_device() => ErrorKind::Backend,
        () => ErrorKind::InvalidModel,
    };
    Error::new(kind, &format!("{error:#}"))
}
