// Two gaps between what the pages load.

// The widget manager of ipywidgets still calls MathJax 2.
window.MathJax = Object.assign(window.MathJax || {}, {
  startup: {
    ready() {
      MathJax.startup.defaultReady();
      MathJax.Hub = { Queue() {} };
    },
  },
});

// The search fetches pages for its excerpts, which a browser refuses to a page from a file: list titles alone there.
if (location.protocol === 'file:' && typeof DOCUMENTATION_OPTIONS !== 'undefined') {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
