// Browsers do not start workers from files. The search of the site runs in one; on pages that are
// opened from a disk this replaces it by a hidden frame with the same script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src, onload: resolve, onerror: reject });
          inner.document.body.append(script);
        });
      inner.importScripts = (...urls) =>
        urls.flat().reduce((before, src) => before.then(() => load(src)), Promise.resolve());
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.inner = inner;
      this.loaded = load(new URL(url, document.baseURI).href);
    }

    postMessage(data) {
      this.loaded.then(() => {
        const event = new this.inner.MessageEvent("message", { data });
        this.inner.dispatchEvent(event);
      });
    }
  };
}
