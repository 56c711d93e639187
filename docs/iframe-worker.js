// Browsers start no workers on pages that are opened from a folder (file:), and the search of the theme is a worker.
// There it runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.started = new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = url;
          script.addEventListener("load", () => resolve(inside));
          inside.document.body.append(script);
        }, { once: true });
        document.body.append(frame);
      });
    }

    postMessage(data) {
      this.started.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
