// Colours the cells of %%coll and %%comp in JupyterLab's editor. Written as JupyterLab loads it, so nothing has to be built: a container with
// `init` and `get`, which takes CodeMirror from JupyterLab. The words are those of coccl_dsl/lang/lexer.py; tests/notebook/test_labextension.py
// holds the two to each other.
(function () {
  const WORDS = {
    keyword:
      "allow as basis claim collective compressor decompress exact flag for frame in inout let mesh nonfinite of only out overlap phase pipeline " +
      "range ranks require schedule scratch send state to tune update use wire when with yield",
    operator: "and or not mod div",
    type: "s2 s4 s8 u1 u2 u4 u8 u16 f16 bf16 f32 e4m3 e5m2 e2m1 e8m0 input",
    kind: "all_reduce reduce_scatter all_gather all_to_all broadcast reduce send_recv divergent",
  };
  const KIND_OF = new Map(
    Object.entries(WORDS).flatMap(([kind, words]) => words.split(" ").map((word) => [word, kind])),
  );
  const TOKEN =
    /(#.*)|("[^"]*"?)|([A-Za-z_]\w*)(\s*\()?|(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|([-+*\/=<>!&|^]+)|([^\s\w])/g;
  const STYLE = {
    comment: "var(--jp-mirror-editor-comment-color, #408080); font-style: italic",
    string: "var(--jp-mirror-editor-string-color, #ba2121)",
    number: "var(--jp-mirror-editor-number-color, #080)",
    keyword: "var(--jp-mirror-editor-keyword-color, #008000); font-weight: bold",
    operator: "var(--jp-mirror-editor-keyword-color, #008000)",
    type: "var(--jp-mirror-editor-builtin-color, #008000)",
    kind: "var(--jp-mirror-editor-builtin-color, #008000)",
    call: "var(--jp-mirror-editor-def-color, #00f)",
    plain: "var(--jp-mirror-editor-variable-color, #212121); font-weight: normal; font-style: normal",
  };

  // [from, to, kind] of each token of a line.
  function tokens(line) {
    const found = [];
    for (const m of line.matchAll(TOKEN)) {
      const [text, comment, string, name, open, number] = m;
      const end = m.index + (name ? name.length : text.length);
      let kind = "plain";
      if (comment) kind = "comment";
      else if (string) kind = "string";
      else if (number) kind = "number";
      else if (name) kind = KIND_OF.get(name) || (open ? "call" : "plain");
      if (name === "decompress" && open) kind = "call";
      found.push([m.index, end, kind]);
    }
    return found;
  }

  function extension({ ViewPlugin, Decoration, EditorView }, { Prec, RangeSetBuilder }) {
    const marks = Object.fromEntries(
      Object.keys(STYLE).map((kind) => [kind, Decoration.mark({ class: `cm-coccl-${kind}` })]),
    );
    function decorate(view) {
      const builder = new RangeSetBuilder();
      const { doc } = view.state;
      if (/^%%(coll|comp)\b/.test(doc.line(1).text)) {
        for (const { from, to } of view.visibleRanges) {
          for (let at = from; at <= to; ) {
            const line = doc.lineAt(at);
            for (const [a, b, kind] of line.number > 1 ? tokens(line.text) : []) {
              builder.add(line.from + a, line.from + b, marks[kind]);
            }
            at = line.to + 1;
          }
        }
      }
      return builder.finish();
    }
    const plugin = ViewPlugin.fromClass(
      class {
        constructor(view) {
          this.decorations = decorate(view);
        }
        update(update) {
          if (update.docChanged || update.viewportChanged) this.decorations = decorate(update.view);
        }
      },
      { decorations: (v) => v.decorations },
    );
    const rules = Object.fromEntries(
      Object.entries(STYLE).map(([kind, style]) => {
        const [color, ...more] = style.split("; ");
        return [`.cm-coccl-${kind}`, Object.fromEntries([["color", color], ...more.map((s) => s.split(": "))])];
      }),
    );
    // The highest precedence makes the innermost elements, so that Python's colours stay below.
    return [Prec.highest(plugin), EditorView.baseTheme(rules)];
  }

  let shared;
  async function use(name) {
    const versions = shared[name];
    return (await versions[Object.keys(versions)[0]].get())();
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["coccl-dsl"] = {
    init: async (scope) => {
      shared = scope;
    },
    get: async () => {
      const [view, state, codemirror] = await Promise.all(
        ["@codemirror/view", "@codemirror/state", "@jupyterlab/codemirror"].map(use),
      );
      const plugin = {
        id: "coccl-dsl:highlight",
        description: "Colours %%coll and %%comp cells.",
        autoStart: true,
        requires: [codemirror.IEditorExtensionRegistry],
        activate: (app, registry) => {
          registry.addExtension({
            name: "coccl-dsl:highlight",
            factory: () => codemirror.EditorExtensionRegistry.createImmutableExtension(extension(view, state)),
          });
        },
      };
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
