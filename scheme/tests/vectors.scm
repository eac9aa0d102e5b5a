;;; Replays the vectors that bind the implementations in other languages to the Rust cores: `vectors FOLDER`, the folder testing/vectors.
;;; The egg receives as a server, so these records are replayed: each in one piece, and byte by byte.

(import scheme (chicken base) (chicken condition) (chicken format) (chicken io) (chicken port)
        (chicken process-context) (chicken string) wireloom)

(define folder (car (command-line-arguments)))

(define (repeat text count)
  (cond ((= count 0) "")
        ((even? count) (let ((half (repeat text (quotient count 2)))) (string-append half half)))
        (else (string-append text (repeat text (- count 1))))))

(define (unhex text)
  (list->string
   (map (lambda (pair) (integer->char (string->number pair 16))) (string-chop text 2))))

;; "61 0001*3": 61 00 01 00 01 00 01. "-": nothing.
(define (parse-bytes words)
  (string-intersperse
   (map (lambda (word)
          (let ((parts (string-split word "*")))
            (cond ((string=? word "-") "")
                  ((null? (cdr parts)) (unhex word))
                  (else (repeat (unhex (car parts)) (string->number (cadr parts)))))))
        words)
   ""))

;; The records of a file: lists of lines, each split into words.
(define (records name)
  (let loop ((lines (call-with-input-file (string-append folder "/" name) read-lines)) (record '()) (found '()))
    (cond ((null? lines) (reverse (if (null? record) found (cons (reverse record) found))))
          ((string=? (car lines) "") (loop (cdr lines) '() (if (null? record) found (cons (reverse record) found))))
          ((char=? (string-ref (car lines) 0) #\#) (loop (cdr lines) record found))
          (else (loop (cdr lines) (cons (string-split (car lines) " ") record) found)))))

(define (field record key) (let ((line (assoc key record))) (and line (cdr line))))

(define (code->bytes code)
  (if (string=? code "-")
      ""
      (let ((number (string->number code)))
        (string (integer->char (quotient number 256)) (integer->char (remainder number 256))))))

;; The events that an application of the egg sees.
(define (expected record)
  (let loop ((lines record) (events '()))
    (if (null? lines)
        (reverse events)
        (let ((words (cdar lines)))
          (loop (cdr lines)
                (case (string->symbol (caar lines))
                  ((text) (cons (list 'text (parse-bytes words)) events))
                  ((binary) (cons (list 'binary (parse-bytes words)) events))
                  ((close)
                   (cons (list 'connection-close (string-append (code->bytes (car words)) (parse-bytes (cdr words)))) events))
                  ((error) (cons (list 'error (string->number (cadr words))) events))
                  (else events)))))))

(define (request deflate)
  (string-append "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                 (if deflate
                     (string-append "Sec-WebSocket-Extensions: "
                                    (string-intersperse (cons "permessage-deflate" (if (equal? deflate '("-")) '() deflate)) "; ")
                                    "\r\n")
                     "")
                 "\r\n"))

;; A port that has one byte at a time.
(define (trickle text)
  (let ((at 0) (ready #t) (len (string-length text)))
    (make-input-port
     (lambda ()
       (set! ready #f)
       (if (= at len) #!eof (let ((char (string-ref text at))) (set! at (+ at 1)) char)))
     (lambda () (let ((was ready)) (set! ready #t) was))
     void
     (lambda () (if (= at len) #!eof (string-ref text at))))))

(define (replay record port)
  (let ((limits (map string->number (field record "limits"))) (events '()))
    (parameterize ((max-frame-size (car limits)) (max-message-size (cadr limits)) (propagate-common-errors #t)
                   (ping-interval 0) (connection-timeout 0))
      (handle-exceptions exn
          ;; An input that ends without a Close frame is not an event of the record.
          (unless ((condition-predicate 'unexpected-close) exn)
            (set! events (cons (cons 'error (get-condition-property exn 'exn 'arguments)) events)))
        (with-websocket
         (lambda ()
           (let loop ()
             (receive (message type) (receive-message)
               (unless (eof-object? message)
                 (set! events (cons (list type message) events))
                 (unless (eq? type 'connection-close) (loop))))))
         port (open-output-string))))
    (reverse events)))

(define count 0)
(define failures 0)

(for-each
 (lambda (file)
   (for-each
    (lambda (record)
      (when (equal? (field record "receiver") '("server"))
        (let ((input (string-append (request (field record "deflate")) (parse-bytes (field record "input"))))
              (wanted (expected record)))
          (set! count (+ count 1))
          (for-each
           (lambda (how port)
             (let ((got (replay record port)))
               (unless (equal? wanted got)
                 (set! failures (+ failures 1))
                 (printf "~A, ~A: expected ~S, got ~S~%" (car (field record "name")) how wanted got))))
           '("whole" "byte by byte")
           (list (open-input-string input) (trickle input))))))
    (records file)))
 '("receive.txt" "deflate.txt"))

(print count " records, " failures " failures")
(exit (if (and (= failures 0) (> count 100)) 0 1))
